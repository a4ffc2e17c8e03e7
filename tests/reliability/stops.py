"""The stop drill, on the real clock over HTTP: storms with SIGSTOP and SIGCONT of the engine core, and idle aborts.

An engine that stands still is frozen and never leaking; a client that goes away from an otherwise idle engine leaves
nothing behind.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.reliability.pages import Page, false_alarms, is_at_rest, samples_of, total
from tests.reliability.processes import AgentProcess, EngineProcess, LoadProcess

STILL_STOPPED_SECONDS = 4.0
LOAD = "--for 10 --length-scale 0.3 --rate 12 --drain 15"
SETTLE_SECONDS = 2.5
PATIENCE_SECONDS = 45.0
POLL_SECONDS = 0.2


@dataclass(slots=True)
class StopResult:
    """All rounds; `frozen_seen` counts those in which the stop was shown for what it was."""

    rounds: int = 0
    frozen_seen: int = 0
    idle_aborts: int = 0
    pages: int = 0
    requests: float = 0.0
    complaints: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Every stop was seen as frozen, and not one finding was raised."""
        return not self.complaints and self.frozen_seen == self.rounds > 0


def run_stops(directory: Path, *, rounds: int, tick: Callable[[], None] = lambda: None) -> StopResult:
    """Each round: a storm, a stop in its midst until it is seen and longer, the rest, the drain, an idle abort."""
    result = StopResult()
    with EngineProcess(directory) as engine, AgentProcess(directory) as agent:
        for seed in range(rounds):
            result.rounds += 1
            _stop_in_a_storm(engine, agent, seed, result)
            _abort_an_idle_engine(engine, agent, result)
            tick()
        page = _look(agent, result)
        result.requests = total(page or {}, "kvledger_requests_total")
    return result


def _stop_in_a_storm(engine: EngineProcess, agent: AgentProcess, seed: int, result: StopResult) -> None:
    with LoadProcess(engine.url, seed=seed, flags=LOAD):
        _stop_while_busy(engine, agent, result)
        try:
            # On a busy machine steps are long, and with them the time after which silence means frozen.
            verdicts = _watch(agent, result, PATIENCE_SECONDS, until="frozen")
            _watch(agent, result, STILL_STOPPED_SECONDS)
        finally:
            os.kill(engine.core_pid, signal.SIGCONT)
        result.frozen_seen += "frozen" in verdicts
        if "frozen" not in verdicts:
            result.complaints.append(f"round {seed}: a stopped engine was shown as {sorted(verdicts)}")
        _watch(agent, result, SETTLE_SECONDS)
    _await_idle(agent, result)


def _stop_while_busy(engine: EngineProcess, agent: AgentProcess, result: StopResult) -> None:
    """Stop the core while it has work: one that is stopped while idle is idle, since it would run no code anyway."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if not _is_idle(_look(agent, result) or {}):
            os.kill(engine.core_pid, signal.SIGSTOP)
            _watch(agent, result, SETTLE_SECONDS)
            if not _is_idle(_look(agent, result) or {}):
                return
            os.kill(engine.core_pid, signal.SIGCONT)
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"the engine was never busy within {PATIENCE_SECONDS} s")


def _is_idle(page: Page) -> bool:
    return all(value == 1 for _, value in page.get("kvledger_engine_idle", []))


def _abort_an_idle_engine(engine: EngineProcess, agent: AgentProcess, result: StopResult) -> None:
    """One request alone on the engine, dropped by its client in mid-stream: no other step will tidy up after it."""
    body = b'{"prompt": [1, 2, 3, 4, 5, 6, 7, 8], "max_tokens": 400, "stream": true}'
    request = urllib.request.Request(
        f"{engine.url}/v1/completions", data=body, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
        answer.readline()
    result.idle_aborts += 1
    _await_idle(agent, result)


def _look(agent: AgentProcess, result: StopResult) -> Page | None:
    text = agent.page()
    if text is None:
        return None
    page = samples_of(text)
    result.pages += 1
    result.complaints += false_alarms(page)
    return page


def _watch(agent: AgentProcess, result: StopResult, seconds: float, *, until: str | None = None) -> set[str]:
    """The verdicts shown during `seconds`, or until one of them is shown."""
    verdicts: set[str] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end and until not in verdicts:
        page = _look(agent, result)
        verdicts |= {labels["verdict"] for labels, value in (page or {}).get("kvledger_verdict", []) if value == 1}
        time.sleep(POLL_SECONDS)
    return verdicts


def _await_idle(agent: AgentProcess, result: StopResult) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if is_at_rest(_look(agent, result) or {}):
            return
        time.sleep(POLL_SECONDS)
    result.complaints.append(f"not idle with nothing active within {PATIENCE_SECONDS} s")
