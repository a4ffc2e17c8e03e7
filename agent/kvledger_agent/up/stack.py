"""The stack of one `kvledger up`: engine, agent, load and parts as children, in a directory of their own.

Order is its trade. Started engine first; ended load first, then, once nothing is held, engine, parts and agent.
Nothing is left behind.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from kvledger_agent.scrape.page import Page
from kvledger_agent.up.child import Child
from kvledger_agent.up.page import agents_page, answer
from kvledger_agent.up.parts import URLS, Kind, Parts, labelled
from kvledger_agent.up.ports import usable_port
from kvledger_agent.up.settings import AGENT_PORT, DRAIN_SECONDS, ENGINE_PORT, UpSettings

READY_SECONDS, STOP_SECONDS = 30.0, 15.0
ENGINE_READY_SECONDS, PATIENCE_SECONDS = 240.0, 3.0
"""An engine compiles its kernels at its first start on a machine; after so long it is said what it does."""
TMPFS = Path("/dev/shm")


class Stack:
    """Children and their directory; a context manager, so that every way out ends them."""

    def __init__(self, settings: UpSettings, *, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.directory = Path(tempfile.mkdtemp(prefix="kvledger-up-", dir=TMPFS if TMPFS.is_dir() else None))
        self.engine_url, self.agent_url = "", ""
        self.engine: Child | None = None
        self.agent: Child | None = None
        self.load: Child | None = None
        self.parts: Parts | None = None

    def start(self) -> None:
        """Start engine and agent and wait until both answer. Raises `ChildFailed` with their last words."""
        ledgers, port = self.directory / "ledgers", usable_port(AGENT_PORT)
        engine = self.settings.engine_arguments(ledgers, usable_port(ENGINE_PORT), self.seed)
        self.engine = Child("engine", engine, log=self.directory / "engine.log")
        self.engine_url = str(self._engines_line(self.engine)["url"])
        self.agent_url = f"http://127.0.0.1:{port}"
        agent = ["agent", "--directory", str(ledgers), "--port", str(port)]
        self.agent = Child("agent", agent, log=self.directory / "agent.log")
        self._await_agent()

    def _engines_line(self, engine: Child) -> dict[str, Any]:
        """What the engine says when it serves. Until then, once, what it does, where that takes long."""
        began, told = time.monotonic(), False
        while (said := engine.line_if_any()) is None:
            waited_seconds = time.monotonic() - began
            if waited_seconds > ENGINE_READY_SECONDS:
                raise engine.failure(f"was not ready within {ENGINE_READY_SECONDS:.0f} s")
            if waited_seconds > PATIENCE_SECONDS and engine.has_spoken and not told:
                print(labelled("engine", f"not ready yet: {engine.last_word}"), file=sys.stderr, flush=True)
                told = True
            time.sleep(0.05)
        return said

    def _await_agent(self) -> None:
        assert self.agent is not None
        deadline = time.monotonic() + READY_SECONDS
        while answer(f"{self.agent_url}/readyz") is None:
            self.agent.require_running()
            if time.monotonic() > deadline:
                raise self.agent.failure(f"was not ready within {READY_SECONDS:.0f} s")
            time.sleep(0.05)

    def start_load(
        self, *, trace: Path | None, seconds: float | None, profile: str | None, round_number: int = 0
    ) -> None:
        """Begin driving the engine; another round takes another seed."""
        arguments = self.settings.load_arguments(
            self.engine_url, trace=trace, seconds=seconds, seed=self.seed + round_number, profile=profile
        )
        self.load = Child("load", arguments, log=self.directory / "load.log")

    def start_parts(self, kinds: Iterable[Kind]) -> None:
        """Start what else there is to look at; returns at once, whatever comes of it."""
        self.parts = Parts(kinds, self.agent_url, self.directory)

    def news(self) -> list[str]:
        """What the parts have to say since the last call."""
        return [] if self.parts is None else self.parts.news()

    @property
    def urls(self) -> dict[str, str | None]:
        """Where everything listens: `engine`, `metrics`, and the names in `parts.URLS`; None for what does not."""
        own: dict[str, str | None] = {"engine": self.engine_url, "metrics": f"{self.agent_url}/metrics"}
        return own | (dict.fromkeys(URLS) if self.parts is None else self.parts.urls)

    def stop_load(self) -> dict[str, Any]:
        """End the arrivals, let the open requests finish, return the load's report."""
        if self.load is None:
            return {}
        self.load.ask(signal.SIGINT)
        report = self.load.output(DRAIN_SECONDS + STOP_SECONDS)
        return dict(json.loads(report)) if report.strip() else {}

    def load_ended(self) -> bool:
        """Whether the load has come to the end of its plan. Raises `ChildFailed` if it could not even begin one."""
        if self.load is None or self.load.running:
            return False
        if not self.load.output(STOP_SECONDS).strip():
            raise self.load.failure("ended without a report")
        return True

    def page(self) -> Page | None:
        """The agent's page now; None when it is not to be had."""
        return agents_page(self.agent_url)

    def require_running(self) -> None:
        """Raises `ChildFailed` if engine or agent has ended by itself."""
        for child in (self.engine, self.agent):
            if child is not None:
                child.require_running()

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave children behind
        for child in (self.load, self.engine, self.parts, self.agent):
            if child is not None:
                child.stop(STOP_SECONDS)
        shutil.rmtree(self.directory, ignore_errors=True)
        signal.signal(signal.SIGINT, before)
