"""What alerts are about, provoked in a real engine of the cell model: one context manager per alert.

A scene yields once its engine or agent is in the state that the alert is about, as the agent's page shows it.
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

from prometheus_client.parser import text_string_to_metric_families

from tests.alerts.stack import wait_for
from tests.engine.server.process import ROOT, EngineProcess
from tests.reliability.processes import AgentProcess

FINDING_SECONDS = 40.0
SMALL = ("--blocks", "64", "--block-size", "16", "--max-model-len", "4096")


class Request:
    """One streamed completion; leaving the block drops its connection, which cancels it."""

    def __init__(self, url: str, *, prompt_tokens: int, max_tokens: int, first_token: int = 1) -> None:
        address = urllib.parse.urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        # Each prompt has tokens of its own, so that no block is shared.
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

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


def value(agent: AgentProcess, name: str, **labels: str) -> float | None:
    """The sum of a family's samples with these labels on the agent's page; None when there are none."""
    families = text_string_to_metric_families(agent.page() or "")
    found = [s.value for f in families for s in f.samples if s.name == name and labels.items() <= s.labels.items()]
    return sum(found) if found else None


def wait_until(agent: AgentProcess, name: str, holds: Callable[[float], bool], **labels: str) -> None:
    """Wait for a value on the agent's page."""

    def answer() -> bool:
        now = value(agent, name, **labels)
        return now is not None and holds(now)

    wait_for(answer, f"{name}{labels}", FINDING_SECONDS)


def leak(engine: EngineProcess) -> None:
    """Of an engine with `--fault skipped_free`: one request is dropped, and its few blocks stay."""
    with Request(engine.url, prompt_tokens=20, max_tokens=400) as request:
        request.first_event()


@contextmanager
def leaking(directory: Path, agent: AgentProcess) -> Iterator[None]:
    with EngineProcess(directory, *SMALL, "--step-time", "base=5ms", "--fault", "skipped_free") as engine:
        leak(engine)
        wait_until(agent, "kvledger_findings", bool, kind="excess_reference")
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
def stalled(directory: Path, agent: AgentProcess) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.alerts.stalling", str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(ROOT / place) for place in ("", "engine", "agent"))}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as engine:
        try:
            assert engine.stdout is not None
            assert engine.stdout.readline()
            wait_until(agent, "kvledger_verdict", bool, verdict="stalled")
            yield
        finally:
            engine.kill()


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
    """No alert's cause: one long prompt, computed in small chunks, looks like an engine that is stalled."""
    flags = ("--blocks", "300", "--max-num-seqs", "1", "--max-num-batched-tokens", "8", "--step-time", "base=40ms")
    with (
        EngineProcess(directory, *flags) as engine,
        Request(engine.url, prompt_tokens=4000, max_tokens=8),
    ):
        wait_until(agent, "kvledger_requests_live", bool, state="running")
        with Request(engine.url, prompt_tokens=10, max_tokens=8):
            wait_until(agent, "kvledger_verdict", bool, verdict="stalled")
            yield


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


SCENES: Mapping[str, Callable[[Path, AgentProcess], AbstractContextManager[None]]] = {
    "KvledgerPoolHighWatermark": pressed,
    "KvledgerPoolExhaustionPredicted": running_out,
    "KvledgerBlockLeak": leaking,
    "KvledgerBlockCorruption": corrupted,
    "KvledgerEngineStalled": stalled,
    "KvledgerEngineFrozen": frozen,
    "KvledgerEngineDown": down,
    "KvledgerRejections": refusing,
    "KvledgerLedgerUnreadable": unreadable,
    "KvledgerAgentAbsent": unwatched,
}
