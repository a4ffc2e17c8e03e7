"""A real Prometheus that scrapes a real agent beside real engines in trouble, each engine named after its scenario.

What each engine is started with and what is done to it is in `scenarios`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from kvledger_agent.up.child import Child
from tests.agent.scrape.serving import PAGES, serving
from tests.alerts.scenes import left_alone
from tests.alerts.stack import Prometheus
from tests.dashboards import cramped
from tests.dashboards.answers import PARAMETERS, Answers, Series
from tests.dashboards.scenarios import SETTINGS, STALLED, TENANTS
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
SOURCES = [str(ROOT / name) for name in ("engine", "agent", "dashboards", "alerts", ".")]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([*SOURCES, os.environ.get("PYTHONPATH", "")])}
READY_SECONDS, STOP_SECONDS, SCENARIO_SECONDS, LOAD_SECONDS = 90.0, 15.0, 90.0, 180
JOB = PARAMETERS.job
AGENT = "--interval 0.5 --verdict-window 5 --scrape-interval 1 --otlp-interval 1 --price-per-hour 3.6"
PAGE, SCRAPED = PAGES / "vllm-0.32-busy.prom", "vllm"
"""A page that is served as it is, as that of an engine that only has a page."""
HELD = "held"
"""An engine whose requests no longer move: one has ended and keeps its blocks, one never fits, three share a prefix."""
ENGINES = {*SETTINGS, SCRAPED, STALLED, cramped.NAME, HELD}
BROKEN = "broken.0.00000001.kvledger"
"""A ledger that is none."""


@dataclass(slots=True, kw_only=True)
class Live(Answers):
    """Everything, started on entry and ended on exit; nothing is in trouble yet.

    `moments` says when what was waited for could be seen. `scorecard` is the storm's as the agent gave it at `still`.
    """

    directory: Path
    moments: dict[str, float] = field(default_factory=dict)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    scorecard: dict[str, Any] = field(default_factory=dict)
    agent: str = ""
    _children: list[Child] = field(default_factory=list)
    _servers: ExitStack = field(default_factory=ExitStack)

    @property
    def ledgers(self) -> Path:
        """Where the engines' ledgers lie."""
        return self.directory / "ledgers"

    def __enter__(self) -> Live:
        """Start all of it. Whatever fails, nothing is left running."""
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _start(self) -> None:
        self.ledgers.mkdir()
        (self.ledgers / BROKEN).write_bytes(bytes(4096))
        (self.directory / "tenants.toml").write_text(TENANTS)
        scraped = self._servers.enter_context(serving({"/metrics": PAGE.read_bytes()}))
        children = {name: self._engine(name) for name in SETTINGS}
        self._servers.enter_context(_cramped(self.ledgers))
        self._servers.enter_context(left_alone(self.ledgers, HELD, HELD))
        self._servers.enter_context(left_alone(self.ledgers, "stalled", STALLED))
        self.agent = self._agent(scraped.url).first_line(READY_SECONDS)["url"]
        server = Prometheus(self.directory / "prometheus", agent=self.agent, parameters=PARAMETERS)
        self.prometheus = self._servers.enter_context(server).url
        self.engines = {name: child.first_line(READY_SECONDS) for name, child in children.items()}

    def engine(self, name: str) -> dict[str, Any]:
        """Start an engine of this name, or start it again; what it says when it is ready."""
        return self._engine(name).first_line(READY_SECONDS)

    def load(self, name: str, *arguments: str) -> None:
        """Send requests to an engine until everything ends."""
        self._child("load", "--url", self.engines[name]["url"], "--for", str(LOAD_SECONDS), "--drain", "1", *arguments)

    def _engine(self, name: str) -> Child:
        places = ("--directory", str(self.ledgers), "--name", name, "--model", "cell", "--port", "0")
        files = [each.format(files=self.directory) for each in SETTINGS[name].split()]
        return self._child("engine", *places, "--drain-timeout", "0", *files)

    def _agent(self, scraped: str) -> Child:
        """Exports over OTLP to nobody: what it tries fails."""
        arguments = (*AGENT.split(), "--directory", str(self.ledgers), "--scrape", f"{SCRAPED}={scraped}")
        return self._child("agent", *arguments, "--otlp", f"http://127.0.0.1:{free_port()}", "--port", "0")

    def _child(self, command: str, *arguments: str) -> Child:
        child = Child(
            command, [command, "--json", *arguments], log=self.directory / f"{command}.log", environment=ENVIRONMENT
        )
        self._children.append(child)
        return child

    def wait_for(self, scenes: Mapping[str, str]) -> None:
        """Wait until each query has had an answer, and note in `moments` when it first had one."""
        deadline = time.monotonic() + SCENARIO_SECONDS
        while pending := [name for name in scenes if name not in self.moments]:
            for name in pending:
                now = time.time()
                if self._answers(scenes[name], now):
                    self.moments[name] = now
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {SCENARIO_SECONDS:.0f} s: {pending}\n{self._last_words()}")
            time.sleep(0.25)

    def _answers(self, expr: str, at: float) -> list[Series]:
        try:
            return self.instant(expr, at)
        except OSError:
            return []  # Prometheus is still starting

    def _last_words(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-800:] for path in self.directory.glob("**/*log"))

    def _stop(self) -> None:
        if "frozen" in self.engines:
            os.kill(self.engines["frozen"]["core_pid"], signal.SIGCONT)
        for child in reversed(self._children):
            child.ask(signal.SIGTERM)
        for child in self._children:
            child.stop(STOP_SECONDS)
        self._servers.close()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def _cramped(ledgers: Path) -> Iterator[None]:
    """The engine of `tests.dashboards.cramped`, ended with its input."""
    command = [sys.executable, "-m", "tests.dashboards.cramped", str(ledgers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **ENVIRONMENT}) as engine:
        try:
            yield
        finally:
            engine.communicate()
