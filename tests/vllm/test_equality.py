"""At random publications of a real server under load, every count of the agent is what vLLM's own objects say."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvledger.reader import Reader
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from tests.vllm.conductor import Conductor
from tests.vllm.load import Load, client
from tests.vllm.seen import counts_of, differences
from tests.vllm.server import VllmServer, vllm_server

POINTS, SEED, MOST_SECONDS, EBB_SECONDS = 200, 20260714, 400.0, 120.0
LIMITS = ("--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "128")
BLOCKS = 97
STATES = (
    "running", "waiting", "preempted", "finishing", "prefilling", "decoding", "shared", "cached", "pinned", "idle",
    "aborted", "preemptions", "prefix_hit", "finished", "deferred",
)  # fmt: skip
ABORTED = ("waiting", "prefilling", "decoding", "just finished")


class Points(threading.Thread):
    """Answers the hook: holds the engine at random publications, compares, lets it go on."""

    def __init__(
        self,
        conductor: Conductor,
        agent: Agent,
        wanted: int,
        *,
        states: tuple[str, ...] = STATES,
        aborted: tuple[str, ...] = ABORTED,
    ) -> None:
        super().__init__(name="points", daemon=True)
        self._conductor, self._agent, self._wanted = conductor, agent, wanted
        self._states, self._aborted = states, aborted
        self._source = random.Random(SEED)
        self.states: Counter[str] = Counter()
        self.points = 0
        self.prefilling: Callable[[list[str]], object] = lambda request_ids: None
        """Told at each point which requests have most of their prompt to come: who wants to abort one does so."""
        self.last: dict[str, Any] = {}
        """What vLLM said at the last one."""
        self.abort_states: dict[str, int] = {}
        self.wrong: list[tuple[int, dict[str, Any]]] = []
        self.error: BaseException | None = None
        self.enough, self.ebbing = threading.Event(), threading.Event()
        """`ebbing`: no more requests come, so that the last one's end is an idle engine, which none should miss."""

    def run(self) -> None:
        """Until enough points were compared; the engine is free after that."""
        try:
            self._conductor.tell(hold=True)
            while not self.enough.is_set():
                self._compare(self._conductor.held())
        except BaseException as error:  # noqa: BLE001  the test shows it
            self.error = error
        finally:
            self.enough.set()

    def _compare(self, truth: dict[str, Any]) -> None:
        self.last = truth
        seen = counts_of(self._agent)
        wrong = differences(truth, seen)
        if wrong:
            self.wrong.append((truth["seq"], wrong))
        self.points += 1
        self._note(truth)
        self.abort_states = truth["abort_states"]
        missing = {state for state in self._states if not self.states[state]}
        complete = not missing and all(map(self.abort_states.get, self._aborted))
        if (self.points >= self._wanted and complete) or len(self.wrong) > 20:
            self.enough.set()
        # What vLLM does with a connector only, half of the time: frees deferred to a step's end, and blocks kept on.
        self._conductor.tell(
            defer_frees=self.points // 20 % 2 or "pinned" in missing,
            release_late=self.points // 30 % 2,
            go=10**9 if self.enough.is_set() else self._steps(len(truth["requests"])),
        )

    def _steps(self, requests: int) -> int:
        """Some, or one where what is wanted lasts for one publication only: the last one's end, an abort in a step."""
        every = self.points >= self._wanted or (self.ebbing.is_set() and requests == 1)
        return 1 if every else 1 + self._source.randrange(12)

    def _note(self, truth: dict[str, Any]) -> None:
        rows = truth["requests"].values()
        self.prefilling(
            [name for name, row in truth["requests"].items() if 0 < (row["computed"] or 0) < row["prompt"] // 2]
        )
        self.states.update(
            state
            for state, there in {
                **{state: any(row["state"] == state for row in rows) for state in STATES[:4]},
                "prefilling": any(row["computed"] is not None and row["computed"] < row["prompt"] for row in rows),
                "decoding": any(row["state"] == "running" and row["output"] > 0 for row in rows),
                "idle": not rows,
                **{name: bool(truth[name]) for name in STATES[6:9]},
                **{name: bool(truth[name]) for name in STATES[10:]},
            }.items()
            if there
        )


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, ledger_directory: Path, tmp_path_factory: pytest.TempPathFactory, conductor: Conductor
) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    with vllm_server(
        tiny_model, ledger_directory, log, blocks=BLOCKS, arguments=LIMITS, environment=conductor.environment
    ) as running:
        yield running


def test_every_count_of_the_agent_is_what_vllm_says_at_200_random_publications(
    server: VllmServer, conductor: Conductor, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = Agent(AgentConfig(directory=server.directory))
    points = Points(conductor, agent, POINTS)
    points.start()
    outcomes = asyncio.run(drive(server.url, points))
    points.join(10)
    agent.close()
    with capsys.disabled():
        print(f"\n{points.points} points; states at them: {dict(points.states)}")
        print(f"aborts by state: {points.abort_states}; requests: {dict(outcomes)}")
    assert points.error is None, points.error
    assert not points.wrong, f"{len(points.wrong)} points differ, (vLLM's, the agent's): {points.wrong[:3]}"
    assert points.points >= POINTS
    with Reader.open(server.ledger()) as reader:
        control = reader.sample().control
    assert control["mirror_corrections"] == control["overflows"] == control["instrument_failed"] == 0
    assert not [state for state in STATES if not points.states[state]], "states that were never seen"
    assert not [state for state in ABORTED if not points.abort_states.get(state)], "never aborted in these"
    assert {"completed", "shared", "four", "refused", "constrained"} <= set(outcomes)
    assert outcomes["aborted before an answer"]
    assert outcomes["aborted among tokens"]


async def drive(url: str, points: Points) -> Counter[str]:
    """Load in bursts, with pauses in which the engine is idle, until the points are enough."""
    source = random.Random(SEED)
    deadline = time.monotonic() + MOST_SECONDS
    async with client(url) as api:
        load = Load(api, source)
        loop = asyncio.get_running_loop()
        points.prefilling = lambda ids: loop.call_soon_threadsafe(load.note_prefilling, ids)
        while not points.enough.is_set() and time.monotonic() < deadline:
            load.stopping = False
            points.ebbing.clear()
            burst = asyncio.ensure_future(load.mixed(12))
            await asyncio.wait((burst,), timeout=15)
            load.stopping = True
            points.ebbing.set()
            await asyncio.wait((burst,), timeout=EBB_SECONDS)
            if not burst.done():
                burst.cancel()
                raise AssertionError(f"requests that do not end: {points.points} points, {points.error}, {points.last}")
            await burst
        points.enough.set()
    return load.outcomes
