"""What the agent says of a real vLLM under load: the scenarios it can be brought into, judged by the same rules."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvledger.reader import Reader
from kvledger.words import Reason
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from tests.verdict.live import under_load
from tests.verdict.load import Stream
from tests.vllm.server import MODEL, VllmServer, vllm_server

WINDOW_SECONDS, LOOKS = 8.0, 7
LIMITS = ("--max-model-len", "2048", "--max-num-seqs")


@contextmanager
def serving(model: Path, blocks: int, seqs: int, *arguments: str) -> Iterator[VllmServer]:
    with (
        tempfile.TemporaryDirectory(prefix="kvledger-vllm-", dir="/dev/shm") as directory,
        tempfile.TemporaryDirectory() as logs,
        vllm_server(
            model, Path(directory), Path(logs) / "log", blocks=blocks, arguments=(*LIMITS, str(seqs), *arguments)
        ) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def small_pool(tiny_model: Path) -> Iterator[VllmServer]:
    """64 blocks of 32 tokens, slots for all."""
    with serving(tiny_model, 65, 64) as server:
        yield server


@pytest.fixture(scope="module")
def few_slots(tiny_model: Path) -> Iterator[VllmServer]:
    """512 blocks, four slots, 128 tokens a step."""
    with serving(tiny_model, 513, 4, "--max-num-batched-tokens", "128") as server:
        yield server


def said(server: VllmServer, streams: Sequence[Stream]) -> Counter[Reason]:
    """What an agent that watches says over the last looks, after a window and a half of load."""
    pause = threading.Event()
    config = AgentConfig(directory=server.directory, interval_seconds=0.5, verdict_window_seconds=WINDOW_SECONDS)
    with under_load(server.url, streams, seed=0, model=MODEL), closing(Agent(config)) as agent:
        agent.start()
        pause.wait(1.5 * WINDOW_SECONDS)
        found: Counter[Reason] = Counter()
        for _ in range(LOOKS):
            pause.wait(0.5)
            (seen,) = agent.fleet.observations
            assert seen.verdict is not None
            found[seen.verdict.reason] += 1
        print(seen.verdict)
    return found


def most(found: Counter[Reason]) -> str:
    return found.most_common(1)[0][0].word


@pytest.mark.parametrize(
    ("reason", "streams"),
    [
        ("many_requests", [Stream(clients=40, prompt=120, tokens=60, tenant="")]),
        ("long_requests", [Stream(clients=6, prompt=640, tokens=60, tenant="")]),
        ("shared_prefixes", [Stream(clients=40, prompt=1320, prefix=1280, tokens=40, tenant="")]),
        (
            "head_of_line",
            [
                Stream(clients=2, prompt=1500, tokens=4, tenant=""),
                Stream(clients=6, prompt=40, tokens=150, tenant=""),
                Stream(clients=6, prompt=40, tokens=400, tenant=""),
            ],
        ),
        ("light", [Stream(rate=1, prompt=40, tokens=4, tenant="")]),
    ],
)
def test_a_small_pool_is_taken_for_what_it_is(small_pool: VllmServer, reason: str, streams: list[Stream]) -> None:
    found = said(small_pool, streams)

    assert most(found) == reason, found


@pytest.mark.parametrize(
    ("reason", "streams"),
    [
        ("batch_slots", [Stream(clients=16, prompt=40, tokens=60, tenant="")]),
        ("token_budget", [Stream(clients=4, prompt=1800, tokens=2, tenant="")]),
        ("compute", [Stream(clients=4, prompt=40, tokens=400, tenant="")]),
    ],
)
def test_an_engine_of_few_slots_is_taken_for_what_it_is(
    few_slots: VllmServer, reason: str, streams: list[Stream]
) -> None:
    found = said(few_slots, streams)

    assert most(found) == reason, found


def test_a_stopped_core_with_work_has_no_heartbeat(few_slots: VllmServer) -> None:
    with closing(Reader.open(few_slots.ledger())) as reader:
        core = reader.sample().writer_pid
    assert core is not None
    stopping = threading.Timer(4.0, os.kill, (core, signal.SIGSTOP))
    stopping.start()
    try:
        found = said(few_slots, [Stream(clients=4, prompt=40, tokens=400, tenant="")])
    finally:
        stopping.cancel()
        os.kill(core, signal.SIGCONT)

    assert most(found) == "no_heartbeat", found
