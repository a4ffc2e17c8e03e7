"""What the live drills provoke: a load or a defect, the alerts that must fire, those told, and those another explains.

A drill's scene yields while its trouble lasts. Afterwards an engine is started anew under the same name, in which
nothing is wrong, and everything must resolve; where a scene has an agent of its own, nobody scrapes that one any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvledger_alerts.table import Parameters, Scale
from tests.agent.scrape.serving import page
from tests.alerts import scenes
from tests.alerts.scenes import SMALL, Request, Scene
from tests.engine.server.process import EngineProcess
from tests.reliability.processes import AgentProcess

DRILLED = Parameters(
    scale=Scale(factor=1 / 600, floor_seconds=3),
    rate_seconds=9000,
    critical_ratio=0.9,
    rejection_count=3,
    wait_target_seconds=1.0,
    wait_count=3,
    oldest_wait_seconds=2.0,
    thrash_count=3,
    finishing_seconds=3.0,
    hit_tokens=100,
    ttft_target_seconds=0.25,
    slo_count=3,
)
"""Minutes are fractions of a second, days are minutes; what needs a volume takes a small one. Rates are over 15 s: an
exporter that fails tries again only every few seconds."""
SCRAPES_BEFORE = 40
FLAP_SECONDS = 1.0
"""As long as from one scrape by Prometheus to the next."""
WATCHING = ("--verdict-window", "3", "--interval", "0.5")


@dataclass(frozen=True)
class Drill:
    """One scene. All of `told` and `explained` fire; of the latter nobody is told."""

    scene: Scene
    told: tuple[str, ...]
    explained: tuple[str, ...] = ()
    agent_killed: bool = False
    """Whether the scene ends the agent, which then has to be started again."""


class Churn:
    """Clients that send one request after the other until the block ends.

    With `same_prompt` all prompts are alike; with `until_first_event` each drops its connection after the first token.
    """

    def __init__(
        self,
        url: str,
        *,
        clients: int,
        prompt_tokens: int,
        max_tokens: int,
        same_prompt: bool = False,
        until_first_event: bool = False,
    ) -> None:
        self._url, self._stop = url, threading.Event()
        self._sizes = prompt_tokens, max_tokens
        self._same, self._impatient = same_prompt, until_first_event
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]

    def _run(self, number: int) -> None:
        prompt_tokens, max_tokens = self._sizes
        turn = 0
        while not self._stop.is_set():
            first = 1 if self._same else 1 + (7 * number + 3 * turn) % 55
            turn += 1
            try:
                with Request(
                    self._url, prompt_tokens=prompt_tokens, max_tokens=max_tokens, first_token=first
                ) as request:
                    if self._impatient:
                        request.first_event()
                    else:
                        request.read()
            except (OSError, ValueError):
                self._stop.wait(0.1)

    def __enter__(self) -> Churn:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def short_of_slots(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = (*SMALL, "--max-num-seqs", "1", "--step-time", "base=20ms")
    with (
        EngineProcess(directory, *flags) as engine,
        Churn(engine.url, clients=8, prompt_tokens=10, max_tokens=30),
    ):
        yield


@contextmanager
def full(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = ("--blocks", "64", "--block-size", "16", "--max-model-len", "1024", "--step-time", "base=500ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags))
        stack.enter_context(Request(engine.url, prompt_tokens=940, max_tokens=80)).first_event()
        stack.enter_context(Request(engine.url, prompt_tokens=600, max_tokens=20, first_token=7))
        yield


@contextmanager
def slow_steps(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """Nobody waits for a limit or for blocks: each waits for the step that runs when it comes, and that takes long."""
    with (
        EngineProcess(directory, *SMALL, "--step-time", "base=2s") as engine,
        Churn(engine.url, clients=3, prompt_tokens=10, max_tokens=2),
    ):
        yield


@contextmanager
def impatient(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """Clients that go away with their first token, while long steps run, at whose end alone blocks come back."""
    with (
        EngineProcess(directory, *SMALL, "--step-time", "base=2s") as engine,
        Churn(engine.url, clients=6, prompt_tokens=10, max_tokens=900, until_first_event=True),
    ):
        yield


@contextmanager
def too_large_for_the_rest(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """A request needs more blocks than are left in a pool that is little more than half full."""
    flags = ("--blocks", "64", "--block-size", "16", "--max-model-len", "1024", "--step-time", "base=500ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags))
        stack.enter_context(Request(engine.url, prompt_tokens=540, max_tokens=300)).first_event()
        stack.enter_context(Request(engine.url, prompt_tokens=600, max_tokens=20, first_token=7))
        yield


@contextmanager
def frozen_with_a_queue(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = (*SMALL, "--max-num-seqs", "1", "--step-time", "base=20ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags))
        stack.enter_context(Request(engine.url, prompt_tokens=10, max_tokens=900)).first_event()
        stack.enter_context(Request(engine.url, prompt_tokens=10, max_tokens=5, first_token=7))
        scenes.wait_until(agent, "kvledger_oldest_wait_seconds", bool, cause="batch_slots")
        engine.core.send(signal.SIGSTOP)
        try:
            yield
        finally:
            engine.core.send(signal.SIGCONT)


@contextmanager
def refusing_most(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = (*SMALL, "--max-num-seqs", "1", "--max-waiting", "1", "--step-time", "base=20ms")
    with (
        EngineProcess(directory, *flags) as engine,
        Churn(engine.url, clients=6, prompt_tokens=10, max_tokens=10),
    ):
        yield


@contextmanager
def thrashing_on(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = ("--blocks", "24", "--block-size", "16", "--max-model-len", "384", "--step-time", "base=5ms")
    with (
        EngineProcess(directory, *flags, "--no-prefix-caching") as engine,
        Churn(engine.url, clients=5, prompt_tokens=60, max_tokens=300),
    ):
        yield


@contextmanager
def prompts_that_changed(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """Prompts that were found in the cache for a while, and then are not any more."""
    with EngineProcess(directory, *SMALL, "--step-time", "base=30ms") as engine:
        with Churn(engine.url, clients=2, prompt_tokens=300, max_tokens=4, same_prompt=True):
            scenes.wait_until(agent, "kvledger_prefix_hit_tokens_total", lambda tokens: tokens > 60_000)
        with Churn(engine.url, clients=1, prompt_tokens=300, max_tokens=2):
            yield


@contextmanager
def renamed_later(directory: Path, agent: AgentProcess) -> Iterator[AgentProcess]:
    """A page loses a family after it has been scraped for some seconds, so that Prometheus has seen the family."""
    with scenes.scraping(directory) as (served, other):
        enough, over = len(served.asked) + SCRAPES_BEFORE, threading.Event()

        def lose() -> None:
            while len(served.asked) < enough and not over.wait(0.1):
                pass
            served.put("/metrics", scenes.page_without_requests())

        thread = threading.Thread(target=lose)
        thread.start()
        try:
            yield other
        finally:
            over.set()
            thread.join()


@contextmanager
def flapping_source(directory: Path, agent: AgentProcess) -> Iterator[AgentProcess]:
    """A scraped engine whose server refuses every other second; samples a second apart see it and do not, in turn."""
    with scenes.scraping(directory) as (served, other):
        over = threading.Event()

        def flap() -> None:
            while not over.is_set():
                for body, status in ((b"busy", 500), (page(scenes.VLLM_PAGE), 200)):
                    served.put("/metrics", body, status=status)
                    over.wait(FLAP_SECONDS)

        thread = threading.Thread(target=flap)
        thread.start()
        try:
            yield other
        finally:
            over.set()
            thread.join()


DRILLS: dict[str, Drill] = {
    "slots": Drill(
        short_of_slots,
        told=("KvledgerSchedulerBound",),
        explained=("KvledgerWaitLong", "KvledgerOldestWaiter"),
    ),
    "slow steps": Drill(slow_steps, told=("KvledgerWaitLong",)),
    "too large": Drill(too_large_for_the_rest, told=("KvledgerPoolBound", "KvledgerOldestWaiter")),
    "late": Drill(short_of_slots, told=("KvledgerTtftSloBurn",)),
    "frozen": Drill(frozen_with_a_queue, told=("KvledgerEngineFrozen",), explained=("KvledgerOldestWaiter",)),
    "full": Drill(full, told=("KvledgerPoolHighWatermark",), explained=("KvledgerPoolBound", "KvledgerOldestWaiter")),
    "running out": Drill(scenes.running_out, told=("KvledgerPoolExhaustionPredicted",)),
    "sharing": Drill(scenes.sharing, told=("KvledgerSharedPrefixPinning",)),
    "refusing": Drill(refusing_most, told=("KvledgerRejections", "KvledgerAvailabilitySloBurn")),
    "leaking": Drill(scenes.leaking, told=("KvledgerBlockLeak",), explained=("KvledgerIdleHold",)),
    "idle hold": Drill(scenes.idle_hold, told=("KvledgerIdleHold",)),
    "impatient": Drill(impatient, told=("KvledgerSlowRelease",)),
    "corrupted": Drill(scenes.corrupted, told=("KvledgerBlockCorruption",)),
    "miscounted": Drill(scenes.miscounted, told=("KvledgerInvariantBroken", "KvledgerBlockLeak")),
    "finishing": Drill(scenes.finishing, told=("KvledgerEngineStalled",), explained=("KvledgerSlowRelease",)),
    "never fits": Drill(scenes.never_fitting, told=("KvledgerNeverFit", "KvledgerEngineStalled")),
    "down": Drill(scenes.down, told=("KvledgerEngineDown",)),
    "thrashing": Drill(thrashing_on, told=("KvledgerPreemptionThrash",)),
    "at quota": Drill(scenes.at_quota, told=("KvledgerTenantAtQuota",), explained=("KvledgerOldestWaiter",)),
    "cache": Drill(prompts_that_changed, told=("KvledgerPrefixHitCollapse",)),
    "compute": Drill(scenes.computing, told=("KvledgerComputeBound",)),
    "source": Drill(scenes.failing_source, told=("KvledgerLedgerUnreadable",), explained=("KvledgerSourceFailing",)),
    "flapping": Drill(flapping_source, told=("KvledgerSourceFailing",)),
    "telemetry": Drill(scenes.losing_exports, told=("KvledgerTelemetryLost",)),
    "family": Drill(renamed_later, told=("KvledgerFamilyMissing",)),
    "unwatched": Drill(scenes.unwatched, told=("KvledgerAgentAbsent",), agent_killed=True),
}
QUICK = ("slots", "frozen")
"""These are part of every test run; the others are drills."""
