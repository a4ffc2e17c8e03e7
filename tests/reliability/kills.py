"""The kill drill: engine and agent killed with SIGKILL, over and over, on one directory of ledgers.

Seen within 3 s, no torn state served, no engine counter goes back, over every death and restart of either.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.reliability.pages import Page, counters_of, false_alarms, samples_of
from tests.reliability.processes import AgentProcess

DEADLINE_SECONDS = 3.0
PATIENCE_SECONDS = 20.0
POLL_SECONDS = 0.05
MOST_STORES = 25_000


@dataclass(slots=True)
class KillResult:
    """All rounds: how many, how each death was seen, and every complaint (none, it is hoped)."""

    engine_kills: int = 0
    kills_inside_publication: int = 0
    agent_kills: int = 0
    seconds_to_seen: list[float] = field(default_factory=list)
    pages: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Not one complaint, and there was something to complain about."""
        return not self.complaints and self.engine_kills > 0 and self.pages > self.engine_kills


class Watcher:
    """Reads the agent's page again and again and holds it against everything it has shown before."""

    def __init__(self, agent: AgentProcess, result: KillResult) -> None:
        self.agent, self.result = agent, result
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def look(self) -> Page | None:
        """One page, checked; None while the agent has none to give."""
        text = self.agent.page()
        if text is None:
            return None
        self.result.pages += 1
        page = samples_of(text)
        self.result.complaints += false_alarms(page)
        self._check_monotone(counters_of(text))
        return page

    def wait(self, what: str, seconds: float, holds: Callable[[Page], bool]) -> float | None:
        """Seconds until `holds(page)`; None, and a complaint, if it took longer than `seconds`."""
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            page = self.look()
            if page is not None and holds(page):
                return time.monotonic() - started
            time.sleep(POLL_SECONDS)
        self.result.complaints.append(f"not {what} within {seconds} s")
        return None

    def _check_monotone(self, counters: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> None:
        for key, value in counters.items():
            before = self._counters.get(key, 0.0)
            if value < before:
                self.result.complaints.append(f"{key} went back from {before} to {value}")
        self._counters.update(counters)


def shows(start: int, *, up: bool) -> Callable[[Page], bool]:
    """Whether a page shows the engine's start number `start` (from 0), and shows it live or dead."""

    def holds(page: Page) -> bool:
        restarts = [value for _, value in page.get("kvledger_engine_restarts_total", [])]
        alive = [value for _, value in page.get("kvledger_engine_up", [])]
        return restarts == [start] and alive == [float(up)]

    return holds


@contextmanager
def crashing_engine(directory: Path, seed: int, crash_at: int) -> Iterator[subprocess.Popen[str]]:
    """A storming engine as a process, live when the block is entered, killed at its end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.reliability.crashing", str(directory), str(seed), str(crash_at)],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def run_kills(
    directory: Path, *, rounds: int, agent_rounds: int, seed: int, tick: Callable[[], None] = lambda: None
) -> KillResult:
    """`rounds` deaths of the engine, half at a random store, half at a random time; `agent_rounds` of the agent."""
    rng, result = random.Random(seed), KillResult()
    with AgentProcess(directory) as agent:
        watcher = Watcher(agent, result)
        for number in range(rounds):
            _kill_engine(directory, rng, number, watcher)
            tick()
        for number in range(agent_rounds):
            _kill_agent(directory, rng, rounds + number, watcher)
            tick()
    return result


def _kill_engine(directory: Path, rng: random.Random, number: int, watcher: Watcher) -> None:
    inside = number % 2 == 0
    with crashing_engine(directory, number, rng.randint(5_000, MOST_STORES) if inside else 0) as engine:
        if inside:
            engine.wait(PATIENCE_SECONDS)  # it may be gone before the agent has ever looked
        else:
            watcher.wait("seen up", PATIENCE_SECONDS, shows(number, up=True))
            time.sleep(rng.uniform(0, 0.5))
            engine.kill()
            engine.wait()
        if engine.returncode != -signal.SIGKILL:
            watcher.result.complaints.append(f"engine {number} ended with {engine.returncode}, not by the kill")
        watcher.result.engine_kills += 1
        watcher.result.kills_inside_publication += inside
        seen = watcher.wait(f"seen dead (engine {number})", DEADLINE_SECONDS, shows(number, up=False))
        if seen is not None:
            watcher.result.seconds_to_seen.append(seen)


def _kill_agent(directory: Path, rng: random.Random, number: int, watcher: Watcher) -> None:
    with crashing_engine(directory, number, 0) as engine:
        watcher.wait("seen up", PATIENCE_SECONDS, shows(number, up=True))
        time.sleep(rng.uniform(0, 0.3))
        watcher.agent.kill()
        watcher.result.agent_kills += 1
        watcher.agent.start()
        watcher.wait("seen up by the new agent", PATIENCE_SECONDS, shows(number, up=True))
        if engine.poll() is not None:
            watcher.result.complaints.append("the engine died with the agent")
