"""A clean vLLM: its page beside its ledger, refusals at the door, and 10,000 requests in which nothing is found."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest

from kvledger.reader import Reader
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.scrape.detect import WANTED, detect
from kvledger_agent.scrape.page import parse_page
from kvledger_agent.scrape.reading import read
from tests.agent.scrape.expected import differences
from tests.agent.scrape.scenes import scenes
from tests.vllm.load import LONGEST, client, prompt
from tests.vllm.seen import ENGINE, await_idle, observation_of
from tests.vllm.server import MODEL, VllmServer, vllm_server

(RECORDED,) = (scene for scene in scenes() if scene.name == "vllm-0.32-real")
REQUESTS, BATCH, CLIENTS, SEED, QUEUED = 10_000, 50, 4, 11, 400
LIMITS = (
    "--max-model-len", "2048", "--max-num-seqs", "64", "--max-num-batched-tokens", "2048",
    "--max-num-queued-reqs", str(QUEUED),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tiny_model: Path, ledger_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    with vllm_server(tiny_model, ledger_directory, log, arguments=LIMITS) as running:
        yield running


def page_of(server: VllmServer) -> bytes:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        body: bytes = answer.read()
        return body


async def send_what_the_page_shows(url: str) -> None:
    """Three requests of 100 tokens for 10, one of 64 tokens for four answers of 5, and one that is too long."""
    source = random.Random(SEED)
    async with client(url) as api:
        for _ in range(3):
            await complete(api, prompt(source, 100), 10)
        await complete(api, prompt(source, 64), 5, n=4)
        with pytest.raises(openai.BadRequestError):
            await complete(api, prompt(source, LONGEST + 1), 1)


async def complete(api: openai.AsyncOpenAI, tokens: Any, most: int, *, n: int = 1) -> Any:
    return await api.completions.create(
        model=MODEL, prompt=tokens, max_tokens=most, n=n, temperature=1.0, extra_body={"ignore_eos": True}
    )


def test_the_doctor_finds_the_real_page_complete_and_it_is_read_as_the_recorded_one(
    server: VllmServer, tmp_path: Path
) -> None:
    asyncio.run(send_what_the_page_shows(server.url))
    body = page_of(server)
    (tmp_path / "vllm-0.32-real.prom").write_bytes(body)

    command = [sys.executable, "-m", "kvledger_agent", "doctor", server.url]
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    found = json.loads(shown.stdout)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert (found["verified"], found["complete"], found["missing"]) == (True, True, [])
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    page = parse_page(body, WANTED)
    known = detect(page)
    (reading,) = read(known.profile, known.version_range, page, {}, monotonic_ns=0, wall_ns=10**18)
    assert known.profile.engine == "vllm"
    assert not differences(reading, RECORDED.expected["ranks"]["0"]), "(got, expected)"


def test_refusals_at_the_door_come_from_the_page_and_everything_else_from_the_ledger(server: VllmServer) -> None:
    too_many = [[3 + number % 500] * 3 for number in range(QUEUED + 5)]

    async def overflow() -> None:
        async with client(server.url) as api:
            with pytest.raises(openai.InternalServerError):
                await complete(api, too_many, 1)

    asyncio.run(overflow())
    config = AgentConfig(directory=server.directory, scrape=(f"vllm={server.url}",), scrape_interval_seconds=0.2)
    with closing(Agent(config)) as agent:
        agent.start()
        deadline = time.monotonic() + 30
        while True:
            seen = {o.identity.key: o for o in agent.fleet.observations} if agent._fleet else {}
            refused = dict(seen[ENGINE].totals.counters.get("rejections_total", {})) if ENGINE in seen else {}
            if refused.get(("queue_full",)):
                break
            assert time.monotonic() < deadline, refused
            time.sleep(0.1)
    assert set(seen) == {ENGINE}
    assert seen[ENGINE].source == "ledger"
    assert refused["queue_full",] >= 1
    pool = seen[ENGINE].pool
    assert pool is not None
    assert pool.cached_blocks is not None


@dataclass
class Storm:
    """What was sent and what came back."""

    outcomes: Counter[str] = field(default_factory=Counter)
    sent: int = 0

    async def rage(self, api: openai.AsyncOpenAI, source: random.Random) -> None:
        """Batches of short prompts, some of them shared; every tenth client goes away in the middle of its batch."""
        while self.sent < REQUESTS:
            self.sent += BATCH
            prompts = [prompt(source, source.randrange(4, 200), shared=source.random() < 0.4) for _ in range(BATCH)]
            if source.random() < 0.1:
                stream = await api.completions.create(
                    model=MODEL, prompt=prompts, max_tokens=12, stream=True, extra_body={"ignore_eos": True}
                )
                received = 0
                async for _ in stream:
                    received += 1
                    if received > source.randrange(1, 200):
                        break
                await stream.close()
                self.outcomes["gone"] += BATCH
            else:
                answer = await complete(api, prompts, source.randrange(1, 6))
                self.outcomes["completed"] += len(answer.choices)


def test_ten_thousand_requests_without_a_defect_leave_no_finding_and_no_block(
    server: VllmServer, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(AgentConfig(directory=server.directory))
    # What the tests before have sent is to be over.
    await_idle(agent)
    before = ended(observation_of(agent).totals.counters["requests_total"])
    watch = Watch(agent)
    watch.start()
    storm, began = Storm(), time.monotonic()

    async def rage() -> None:
        async with client(server.url) as api:
            await asyncio.gather(*(storm.rage(api, random.Random(SEED + n)) for n in range(CLIENTS)))

    asyncio.run(rage())
    elapsed = time.monotonic() - began
    watch.until_idle()
    last = watch.last
    with capsys.disabled():
        print(f"\n{storm.sent} requests in {elapsed:.0f} s ({storm.sent / elapsed:.0f}/s), {watch.samples} samples")
    now = ended(last.totals.counters["requests_total"])
    agent.close()
    assert not watch.found, watch.found
    assert last.pool is not None
    assert last.pool.active_blocks == 0
    assert last.requests is not None
    assert not any((last.requests.live or {("unknown",): 1.0}).values())
    assert sum(now.values()) - sum(before.values()) == REQUESTS
    assert now["length"] - before["length"] >= storm.outcomes["completed"]
    assert now["cancelled"] == sum(last.totals.counters["cancellations_total"].values()) > 0
    assert now["length"] + now["cancelled"] - sum(before.values()) == REQUESTS
    with Reader.open(server.ledger()) as reader:
        control = reader.sample().control
    assert control["mirror_corrections"] == control["overflows"] == control["instrument_failed"] == 0
    assert not last.violations or not any(last.violations.values())


def ended(series: Any) -> Counter[str]:
    """Requests that ended, by reason."""
    counts: Counter[str] = Counter()
    for labels, value in series.items():
        counts[labels[0]] += int(value)
    return counts


class Watch(threading.Thread):
    """Samples as the agent does, several times a second, and keeps whatever is found."""

    def __init__(self, agent: Agent) -> None:
        super().__init__(name="watch", daemon=True)
        self._agent, self._quiet = agent, threading.Event()
        self._wanted = threading.Event()
        self.found: list[Any] = []
        self.samples = 0
        self.last = observation_of(agent)

    def run(self) -> None:
        """Until nothing runs any more, once that is asked for; for a finding's grace and more after that."""
        idle_since: float | None = None
        while not (self._wanted.is_set() and idle_since is not None and time.monotonic() - idle_since > 6):
            self.last = observation_of(self._agent)
            self.samples += 1
            self.found += [*(self.last.findings or ()), *filter(None, (self.last.violations or {}).values())]
            if not self.last.liveness.idle:
                idle_since = None
            elif idle_since is None:
                idle_since = time.monotonic()
            self._wanted.wait(0.3) if not self._wanted.is_set() else time.sleep(0.3)
        self._quiet.set()

    def until_idle(self) -> None:
        """Wait until the engine was idle for a while."""
        self._wanted.set()
        assert self._quiet.wait(120), "the engine does not come to rest"
