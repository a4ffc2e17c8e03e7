"""A real server that guesses tokens from n-grams: at random publications every count of the agent is vLLM's own."""

from __future__ import annotations

import asyncio
import json
import random
import time
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest

from kvledger.reader import Reader
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.scrape.page import parse_page
from tests.vllm.conductor import Conductor
from tests.vllm.load import client
from tests.vllm.server import MODEL, vllm_server
from tests.vllm.test_equality import BLOCKS, LIMITS, SEED, Points
from tests.vllm.test_further import NGRAMS

POINTS, MOST_SECONDS = 60, 90.0
GUESSED = "vllm:spec_decode_num_draft_tokens_total"
STATES = ("running", "waiting", "prefilling", "decoding", "cached", "preemptions", "finished", "aborted")


def test_with_guesses_every_count_of_the_agent_is_what_vllm_says(
    tiny_model: Path, ledger_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guessing = (*LIMITS, "--speculative-config", json.dumps(NGRAMS))
    with (
        closing(Conductor()) as conductor,
        vllm_server(
            tiny_model,
            ledger_directory,
            tmp_path / "log",
            blocks=BLOCKS,
            arguments=guessing,
            environment=conductor.environment,
        ) as server,
        closing(Agent(AgentConfig(directory=server.directory))) as agent,
    ):
        points = Points(conductor, agent, POINTS, states=STATES, aborted=("decoding",))
        points.start()
        asyncio.run(drive(server.url, points))
        points.join(10)
        with Reader.open(server.ledger()) as reader:
            control = reader.sample().control
        with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as page:
            guessed = parse_page(page.read(), (GUESSED,)).sum(GUESSED)
        with capsys.disabled():
            print(f"\n{points.points} points; states at them: {dict(points.states)}")
        assert points.error is None, points.error
        assert not points.wrong, f"{len(points.wrong)} points differ, (vLLM's, the agent's): {points.wrong[:3]}"
        assert points.points >= POINTS
        assert control["mirror_corrections"] == control["overflows"] == control["instrument_failed"] == 0
        assert guessed, "no token was ever guessed"


async def drive(url: str, points: Points) -> None:
    """Prompts that repeat themselves, greedily continued, so that guesses are often right; some go away."""
    source = random.Random(SEED)
    deadline = time.monotonic() + MOST_SECONDS
    async with client(url) as api:

        async def one() -> None:
            while not points.enough.is_set() and time.monotonic() < deadline:
                phrase = [source.randrange(3, 503) for _ in range(source.randrange(2, 9))]
                stream = await api.completions.create(
                    model=MODEL,
                    prompt=(phrase * 200)[: source.randrange(60, 700)],
                    max_tokens=source.randrange(5, 150),
                    temperature=0.0,
                    n=1,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
                async for _ in stream:
                    if source.random() < 0.01:
                        break
                await stream.close()

        await asyncio.gather(*(one() for _ in range(12)))
        points.enough.set()
