"""A scenario run live: the real engine command, the real agent command, load over HTTP, what the agent's API says."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.children import first_line, running
from tests.engine.server.process import EngineProcess
from tests.reliability.processes import AgentProcess
from tests.verdict.load import Load, Stream
from tests.verdict.scenario import Scenario

WINDOW_SECONDS, INTERVAL_SECONDS, LOOKS = 8.0, 0.5, 9
BASE = "--block-size 16 --max-model-len 4096 --max-num-seqs 64 --max-num-batched-tokens 2048 --max-waiting 512"
STEP = "base=20ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said over the last looks, and the last verdict whole."""

    scenario: Scenario
    said: Counter[str]
    last: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """What was said most often."""
        return self.said.most_common(1)[0][0]

    @property
    def right(self) -> bool:
        """Whether that is what the scenario is."""
        return self.reason == self.scenario.reason.word


def run(scenario: Scenario, directory: Path, *, seed: int = 0) -> Outcome:
    """Bring an engine into the scenario, wait for one window and a half, and listen to the agent."""
    with watched(scenario, directory, seed=seed) as agent:
        pause = threading.Event()
        pause.wait(1.5 * WINDOW_SECONDS)
        said: Counter[str] = Counter()
        last: dict[str, Any] = {}
        for _ in range(LOOKS):
            pause.wait(INTERVAL_SECONDS)
            last = verdict_of(agent)
            said[str(last["reason"])] += 1
    return Outcome(scenario=scenario, said=said, last=last)


@contextmanager
def watched(scenario: Scenario, directory: Path, *, seed: int = 0) -> Iterator[AgentProcess]:
    """An engine that is brought into the scenario, and the agent that watches it."""
    settings = ("--verdict-window", f"{WINDOW_SECONDS:g}", "--interval", f"{INTERVAL_SECONDS:g}")
    with _engine(scenario, directory, seed), AgentProcess(directory, *settings) as agent:
        yield agent


def verdict_of(agent: AgentProcess) -> dict[str, Any]:
    """The verdict of the agent's only engine."""
    with urllib.request.urlopen(f"{agent.url}/v1/engines", timeout=5) as answer:
        engines = json.loads(answer.read())["engines"]
    verdict: dict[str, Any] | None = engines[0].get("verdict") if engines else None
    return verdict or {"reason": None, "evidence": "no engine is seen"}


@contextmanager
def _engine(scenario: Scenario, directory: Path, seed: int) -> Iterator[None]:
    if scenario.odd:
        with running("tests.verdict.odd", directory, scenario.odd) as child:
            first_line(child)
            yield
        return
    step = () if "--step-time" in scenario.flags else ("--step-time", STEP)
    flags = [*BASE.split(), *step, *scenario.flags.split()]
    if scenario.tenants:
        path = directory / "tenants.toml"
        path.write_text(scenario.tenants)
        flags += ["--tenants", str(path)]
    with EngineProcess(directory, *flags) as engine, under_load(engine.url, scenario.streams, seed):
        _do(engine, scenario.deed)
        try:
            yield
        finally:
            if scenario.deed == "pause":
                engine.core.send(signal.SIGCONT)


def _do(engine: EngineProcess, deed: str) -> None:
    """What happens to the engine once it has been at work for a while."""
    if not deed:
        return
    threading.Event().wait(2.0)
    if deed == "pause":
        engine.core.send(signal.SIGSTOP)
    elif deed == "kill":
        engine.core.kill()
    elif deed == "stop":
        engine.stop()


@contextmanager
def under_load(url: str, streams: Sequence[Stream], seed: int, *, model: str | None = None) -> Iterator[None]:
    """Load on a server, from a thread with an event loop of its own."""
    if not streams:
        yield
        return
    loop = asyncio.new_event_loop()
    task = loop.create_task(Load(url, streams, seed, model=model).run())
    thread = threading.Thread(target=_until_cancelled, args=(loop, task), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)


def _until_cancelled(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    try:
        loop.run_until_complete(task)
    except asyncio.CancelledError:
        pass
    finally:
        loop.close()
