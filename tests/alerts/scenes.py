"""What alerts are about, provoked in a real engine of the cell model: one context manager per alert.

A scene yields once its engine or agent is in the state that the alert is about, as the agent's page shows it. What it
yields is the agent to ask, where that is not the one it was given: one that scrapes, or exports.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.parser import text_string_to_metric_families

from kvledger_agent.scrape.conditions import IDLE_HOLD_SECONDS
from tests.agent.scrape.serving import Served, page, serving
from tests.alerts.stack import wait_for
from tests.engine.server.process import ROOT, EngineProcess
from tests.ports import free_port
from tests.reliability.processes import AgentProcess

VLLM_PAGE, VLLM_IDLE_PAGE = "vllm-0.32-busy.prom", "vllm-0.32-idle_hold.prom"
FINDING_SECONDS = 40.0
PREFILL_SECONDS = 6.0
"""Twice as long as an engine may go without progress before it is stalled."""
SMALL = ("--blocks", "64", "--block-size", "16", "--max-model-len", "4096")


Scene = Callable[[Path, AgentProcess], AbstractContextManager[AgentProcess | None]]


class Request:
    """One streamed completion; leaving the block drops its connection, which cancels it."""

    def __init__(self, url: str, *, prompt_tokens: int, max_tokens: int, first_token: int = 1) -> None:
        address = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        # Each prompt has tokens of its own, so that no block is shared. The cell model's vocabulary ends at 256.
        assert first_token <= 56, "the engine would refuse it, and the scene would never come about"
        prompt = [first_token + position % 200 for position in range(prompt_tokens)]
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        self._connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", "X-Tenant": "acme"}
        )

    def first_event(self) -> None:
        """Wait for the first token."""
        line = self._connection.getresponse().readline()
        assert line.startswith(b"data: "), line

    def status(self) -> int:
        """The status of an answer that is no stream."""
        return self._connection.getresponse().status

    def read(self) -> None:
        """Read the answer to its end."""
        self._connection.getresponse().read()

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def value(agent: AgentProcess, name: str, **labels: str) -> float | None:
    """The sum of a family's samples with these labels on the agent's page; None when there are none."""
    families = text_string_to_metric_families(agent.page() or "")
    found = [s.value for f in families for s in f.samples if s.name == name and labels.items() <= s.labels.items()]
    return sum(found) if found else None


def wait_until(
    agent: AgentProcess, name: str, holds: Callable[[float], bool], seconds: float = FINDING_SECONDS, **labels: str
) -> None:
    """Wait for a value on the agent's page."""

    def answer() -> bool:
        now = value(agent, name, **labels)
        return now is not None and holds(now)

    wait_for(answer, f"{name}{labels}", seconds)


def leak(engine: EngineProcess) -> None:
    """Of an engine with `--fault skipped_free`: one request is dropped, and its few blocks stay."""
    with Request(engine.url, prompt_tokens=20, max_tokens=400) as request:
        request.first_event()


@contextmanager
def leaking(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with EngineProcess(directory, *SMALL, "--step-time", "base=5ms", "--fault", "skipped_free") as engine:
        leak(engine)
        wait_until(agent, "kvledger_findings", bool, kind="excess_reference")
        wait_until(agent, "kvledger_engine_idle", bool)
        yield


@contextmanager
def corrupted(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = (*SMALL, "--no-prefix-caching", "--step-time", "base=20ms", "--fault", "free_list_duplicate")
    with EngineProcess(directory, *flags) as engine, Request(engine.url, prompt_tokens=10, max_tokens=900) as other:
        other.first_event()  # a block can only be listed twice while another is in use; this request then takes it
        with Request(engine.url, prompt_tokens=100, max_tokens=2) as request:
            request.first_event()
        wait_until(agent, "kvledger_findings", bool, kind="missing_reference")
        yield


@contextmanager
def left_alone(directory: Path, mode: str, name: str = "engine") -> Iterator[None]:
    """An engine that publishes and does nothing else, in one of the modes of `tests.alerts.stalling`."""
    command = [sys.executable, "-m", "tests.alerts.stalling", str(directory), mode, name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / place) for place in ("", "engine", "agent"))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as engine:
        try:
            assert engine.stdout is not None
            assert engine.stdout.readline()
            yield
        finally:
            engine.kill()


@contextmanager
def stalled(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with left_alone(directory, "stalled"):
        wait_until(agent, "kvledger_verdict", bool, verdict="stalled")
        yield


@contextmanager
def finishing(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with left_alone(directory, "finishing"):
        wait_until(agent, "kvledger_oldest_finishing_seconds", bool)
        yield


@contextmanager
def never_fitting(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with left_alone(directory, "never_fit"):
        wait_until(agent, "kvledger_requests_never_fit", bool)
        yield


@contextmanager
def frozen(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with (
        EngineProcess(directory, *SMALL, "--step-time", "base=20ms") as engine,
        Request(engine.url, prompt_tokens=10, max_tokens=900) as request,
    ):
        request.first_event()
        engine.core.send(signal.SIGSTOP)
        try:
            wait_until(agent, "kvledger_verdict", bool, verdict="frozen")
            yield
        finally:
            engine.core.send(signal.SIGCONT)


@contextmanager
def down(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with (
        EngineProcess(directory, *SMALL, "--step-time", "base=20ms") as engine,
        Request(engine.url, prompt_tokens=40, max_tokens=900) as request,
    ):
        request.first_event()
        wait_until(agent, "kvledger_engine_up", bool)
        engine.core.kill()
        wait_until(agent, "kvledger_engine_up", lambda up: not up)
        yield


@contextmanager
def pressed(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = ("--blocks", "32", "--block-size", "16", "--max-model-len", "512", "--step-time", "base=500ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags))
        first = stack.enter_context(Request(engine.url, prompt_tokens=470, max_tokens=40))
        first.first_event()
        stack.enter_context(Request(engine.url, prompt_tokens=300, max_tokens=20, first_token=7))
        wait_until(agent, "kvledger_requests_waiting", bool, cause="pool")
        yield


@contextmanager
def running_out(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = ("--blocks", "64", "--block-size", "4", "--max-model-len", "512", "--step-time", "base=200ms")
    with (
        EngineProcess(directory, *flags) as engine,
        Request(engine.url, prompt_tokens=20, max_tokens=200) as request,
    ):
        request.first_event()
        wait_until(agent, "kvledger_pool_seconds_to_exhaustion", lambda seconds: seconds < 300)
        yield


@contextmanager
def refusing(directory: Path, agent: AgentProcess) -> Iterator[None]:
    flags = (*SMALL, "--max-num-seqs", "1", "--max-waiting", "1", "--step-time", "base=100ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags))
        stack.enter_context(Request(engine.url, prompt_tokens=10, max_tokens=500)).first_event()
        stack.enter_context(Request(engine.url, prompt_tokens=10, max_tokens=5))
        wait_until(agent, "kvledger_requests_waiting", bool, cause="batch_slots")
        for _ in range(3):
            with Request(engine.url, prompt_tokens=10, max_tokens=5) as request:
                assert request.status() in (429, 503)
        wait_until(agent, "kvledger_rejections_total", bool, reason="queue_full")
        yield


@contextmanager
def unwatched(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with EngineProcess(directory, *SMALL):
        wait_until(agent, "kvledger_engine_up", bool)
        agent.kill()
        yield


@contextmanager
def unreadable(directory: Path, agent: AgentProcess) -> Iterator[None]:
    (directory / "engine.0.00000001.kvledger").write_bytes(bytes(4096))
    wait_until(agent, "kvledger_agent_source_success", lambda success: not success)
    yield


@contextmanager
def prefilling(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """No alert's cause: one long prompt in small chunks, and another request that waits for longer than a stall."""
    flags = ("--blocks", "300", "--max-num-seqs", "1", "--max-num-batched-tokens", "8", "--step-time", "base=40ms")
    with (
        EngineProcess(directory, *flags) as engine,
        Request(engine.url, prompt_tokens=4000, max_tokens=8),
    ):
        wait_until(agent, "kvledger_requests_live", bool, state="running")
        with Request(engine.url, prompt_tokens=10, max_tokens=8):
            wait_until(agent, "kvledger_oldest_wait_seconds", lambda s: s > PREFILL_SECONDS, cause="batch_slots")
            yield


@contextmanager
def miscounted(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with EngineProcess(directory, *SMALL, "--no-prefix-caching", "--fault", "free_list_loss") as engine:
        with Request(engine.url, prompt_tokens=100, max_tokens=2) as request:
            request.read()
        wait_until(agent, "kvledger_invariant_violations", bool)
        yield


@contextmanager
def queueing(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """Requests wait for a place in the batch, while blocks are free."""
    flags = (*SMALL, "--max-num-seqs", "1", "--step-time", "base=50ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags))
        stack.enter_context(Request(engine.url, prompt_tokens=10, max_tokens=900)).first_event()
        for number in range(3):
            stack.enter_context(Request(engine.url, prompt_tokens=10, max_tokens=5, first_token=3 + number))
        wait_until(agent, "kvledger_oldest_wait_seconds", bool, cause="batch_slots")
        yield


@contextmanager
def thrashing(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """Four requests, each of which grows to nearly all of the pool."""
    flags = ("--blocks", "24", "--block-size", "16", "--max-model-len", "384", "--step-time", "base=10ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags, "--no-prefix-caching"))
        for number in range(4):
            request = Request(engine.url, prompt_tokens=60, max_tokens=300, first_token=1 + number)
            stack.enter_context(request)
        wait_until(agent, "kvledger_recomputed_tokens_total", bool)
        yield


@contextmanager
def at_quota(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with ExitStack() as stack:
        file = Path(stack.enter_context(TemporaryDirectory())) / "tenants.toml"
        file.write_text("[tenants.acme]\nmax_blocks = 8\nmax_context = 512\n")
        flags = (*SMALL, "--block-size", "64", "--tenants", str(file), "--step-time", "base=1s")
        engine = stack.enter_context(EngineProcess(directory, *flags))
        stack.enter_context(Request(engine.url, prompt_tokens=450, max_tokens=60)).first_event()
        stack.enter_context(Request(engine.url, prompt_tokens=150, max_tokens=50, first_token=7))
        wait_until(agent, "kvledger_oldest_wait_seconds", bool, cause="tenant_quota")
        yield


@contextmanager
def evicting(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """Prompts of which none is seen twice take each other's place in a small pool."""
    with EngineProcess(directory, *SMALL, "--step-time", "base=1ms") as engine:
        for number in range(12):
            with Request(engine.url, prompt_tokens=200, max_tokens=2, first_token=1 + 4 * number) as request:
                request.read()
        wait_until(agent, "kvledger_evictions_total", bool)
        yield


@contextmanager
def sharing(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """Three requests share most of the pool, and a fourth waits for the rest."""
    flags = ("--blocks", "40", "--block-size", "16", "--max-model-len", "640", "--step-time", "base=300ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags))
        for _ in range(3):
            stack.enter_context(Request(engine.url, prompt_tokens=420, max_tokens=60)).first_event()
        stack.enter_context(Request(engine.url, prompt_tokens=300, max_tokens=20, first_token=40))
        wait_until(agent, "kvledger_group_shared_blocks", lambda blocks: blocks > 20)
        wait_until(agent, "kvledger_requests_waiting", bool, cause="pool")
        yield


def judged(scene: Scene, verdict: str) -> Scene:
    """The scene, once this is its verdict."""

    @contextmanager
    def until_judged(directory: Path, agent: AgentProcess) -> Iterator[AgentProcess]:
        with scene(directory, agent), AgentProcess(directory, "--verdict-window", "3") as other:
            wait_until(other, "kvledger_verdict", bool, verdict=verdict)
            yield other

    until_judged.__name__ = f"{scene.__name__}_{verdict}"
    return until_judged


@contextmanager
def computing(directory: Path, agent: AgentProcess) -> Iterator[None]:
    """The model is always at work, for few requests in a large pool."""
    flags = ("--blocks", "512", "--block-size", "16", "--max-model-len", "1024", "--step-time", "base=100ms,seq=20ms")
    with ExitStack() as stack:
        engine = stack.enter_context(EngineProcess(directory, *flags, "--max-num-seqs", "6"))
        for number in range(6):
            request = Request(engine.url, prompt_tokens=20, max_tokens=900, first_token=1 + number)
            stack.enter_context(request).first_event()
        yield


@contextmanager
def failing_source(directory: Path, agent: AgentProcess) -> Iterator[AgentProcess]:
    """An engine that is scraped, and whose server has begun to refuse."""
    with scraping(directory) as (served, other):
        served.put("/metrics", b"busy", status=500)
        wait_until(other, "kvledger_agent_source_success", lambda success: not success)
        yield other


@contextmanager
def losing_exports(directory: Path, agent: AgentProcess) -> Iterator[AgentProcess]:
    """Nobody listens where the agent exports to."""
    flags = (
        "--otlp",
        f"http://127.0.0.1:{free_port()}",
        "--otlp-interval",
        "0.5",
        "--otlp-timeout",
        "0.5",
    )
    with EngineProcess(directory, *SMALL), AgentProcess(directory, *flags) as other:
        wait_until(other, "kvledger_agent_otlp_failures_total", bool)
        yield other


def page_without_requests() -> bytes:
    """The page of a vLLM that has renamed what it says of its requests."""
    gone = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    lines = page(VLLM_PAGE).decode().splitlines(keepends=True)
    return "".join(line for line in lines if not any(name in line for name in gone)).encode()


@contextmanager
def renamed(directory: Path, agent: AgentProcess) -> Iterator[AgentProcess]:
    """An engine whose page has lost a family since."""
    with scraping(directory) as (served, other):
        wait_until(other, "kvledger_capability", bool, signal="requests_live")
        served.put("/metrics", page_without_requests())
        wait_until(other, "kvledger_capability", lambda known: not known, signal="requests_live")
        yield other


@contextmanager
def idle_hold(directory: Path, agent: AgentProcess) -> Iterator[AgentProcess]:
    """A vLLM whose page shows blocks in use while nothing runs or waits, for so long that it is told."""
    with scraping(directory, VLLM_IDLE_PAGE) as (_, other):
        wait_until(other, "kvledger_findings", bool, IDLE_HOLD_SECONDS + FINDING_SECONDS, kind="idle_hold")
        yield other


@contextmanager
def scraping(directory: Path, name: str = VLLM_PAGE) -> Iterator[tuple[Served, AgentProcess]]:
    """A server with a vLLM's page, and an agent that scrapes it."""
    with (
        serving({"/metrics": page(name)}) as served,
        AgentProcess(directory, "--scrape", f"engine={served.url}", "--scrape-interval", "0.2") as other,
    ):
        wait_until(other, "kvledger_agent_source_success", bool)
        yield served, other


@contextmanager
def calm(directory: Path) -> Iterator[AgentProcess]:
    """Nothing is wrong: one request runs, in the one block that it needs. Its agent has seen no growth."""
    flags = ("--blocks", "64", "--block-size", "64", "--max-model-len", "4096", "--step-time", "base=500ms")
    with (
        EngineProcess(directory, *flags) as engine,
        Request(engine.url, prompt_tokens=10, max_tokens=54) as request,
    ):
        request.first_event()
        with AgentProcess(directory) as agent:
            wait_until(agent, "kvledger_verdict", bool, verdict="healthy")
            yield agent


SCENES: Mapping[str, Scene] = {
    "KvledgerPoolHighWatermark": pressed,
    "KvledgerPoolExhaustionPredicted": running_out,
    "KvledgerSharedPrefixPinning": sharing,
    "KvledgerBlockLeak": leaking,
    "KvledgerBlockCorruption": corrupted,
    "KvledgerInvariantBroken": miscounted,
    "KvledgerIdleHold": leaking,
    "KvledgerSlowRelease": finishing,
    "KvledgerEngineStalled": stalled,
    "KvledgerEngineFrozen": frozen,
    "KvledgerEngineDown": down,
    "KvledgerRejections": refusing,
    "KvledgerWaitLong": queueing,
    "KvledgerOldestWaiter": queueing,
    "KvledgerNeverFit": never_fitting,
    "KvledgerPreemptionThrash": thrashing,
    "KvledgerTenantAtQuota": at_quota,
    "KvledgerPrefixHitCollapse": evicting,
    "KvledgerPoolBound": judged(pressed, "pool_bound"),
    "KvledgerSchedulerBound": judged(queueing, "scheduler_bound"),
    "KvledgerComputeBound": judged(computing, "compute_bound"),
    "KvledgerTtftSloBurn": queueing,
    "KvledgerAvailabilitySloBurn": refusing,
    "KvledgerLedgerUnreadable": unreadable,
    "KvledgerSourceFailing": failing_source,
    "KvledgerTelemetryLost": losing_exports,
    "KvledgerFamilyMissing": renamed,
    "KvledgerAgentAbsent": unwatched,
}
