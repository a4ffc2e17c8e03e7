"""One run of `kvledger up`: load, watch, tell what listens, drain, sum up. Starts and ends no process by itself."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from kvledger_agent.scrape.page import Page
from kvledger_agent.up.page import counted
from kvledger_agent.up.parts import Kind, labelled
from kvledger_agent.up.settings import AGENT_PORT, ENGINE_PORT
from kvledger_agent.up.stack import Stack
from kvledger_agent.up.summary import UpSummary, Watch, problems_of, waits_of

POLL_SECONDS = 1.0
DRAIN_LIMIT_SECONDS = 6.0
START_SECONDS = 6.0
"""What a start may take before it shortens the run, which is to end within 20 s of the time it was given."""


class Run:
    """One run of a started stack: load, watch, drain, sum up."""

    def __init__(
        self,
        stack: Stack,
        *,
        trace: Path | None,
        profile: str | None,
        seconds: float | None,
        parts: Iterable[Kind],
        began: float,
    ) -> None:
        self._stack, self._trace, self._profile = stack, trace, profile
        self._seconds, self._parts, self._began = seconds, tuple(parts), began
        self._watch, self._rounds, self._interrupted = Watch(), 0, False

    def whole(self) -> UpSummary:
        """Everything between start and stop."""
        started = time.monotonic()
        with _status() as show:
            try:
                self._start_load()
                self._stack.start_parts(self._parts)
                self._announce()
                self._observe(started, show)
            except KeyboardInterrupt:
                self._interrupted = True
                print("stopping: the load first, then what it left is drained", file=sys.stderr)
        elapsed, urls, cancellations = time.monotonic() - started, self._stack.urls, self._cancellations()
        report = self._stack.stop_load()
        return self._sum_up(elapsed, urls, report, self._drain(), cancellations)

    def _announce(self) -> None:
        stack = self._stack
        lines = (
            labelled("engine", f"{stack.engine_url}/v1/models  (base URL for an OpenAI client: {stack.engine_url}/v1)"),
            labelled("agent", f"{stack.agent_url}/metrics  {stack.agent_url}/v1/engines"),
            labelled("load", f"{stack.settings.load_scales(self._trace, self._profile)}, seed {stack.seed}"),
            labelled("pool", stack.settings.pool_scales),
            labelled("logs", str(stack.directory)),
            labelled("try", f"{_command()} status --directory {stack.directory / 'ledgers'}"),
        )
        for url, port in ((stack.engine_url, ENGINE_PORT), (stack.agent_url, AGENT_PORT)):
            if not url.endswith(f":{port}"):
                print(f"port {port} is taken by somebody else: {url} instead", file=sys.stderr)
        print("\n".join(lines), file=sys.stderr, flush=True)

    def _start_load(self) -> None:
        self._stack.start_load(
            trace=self._trace, seconds=self._seconds, profile=self._profile, round_number=self._rounds
        )
        self._rounds += 1

    def _observe(self, started: float, show: Status | None) -> None:
        end = None if self._seconds is None else self._end(started, self._seconds)
        while end is None or time.monotonic() < end:
            time.sleep(POLL_SECONDS if end is None else min(POLL_SECONDS, max(0.0, end - time.monotonic())))
            self._stack.require_running()
            self._look(show)
            self._tell()
            if self._stack.load_ended() and end is None:
                self._start_load()  # a trace ends; a demonstration goes on until it is told to stop

    def _end(self, started: float, seconds: float) -> float:
        """When the load is over: so long after it started, less what a slow start took of the promised time."""
        return min(started + seconds, self._began + seconds + START_SECONDS)

    def _look(self, show: Status | None) -> None:
        page = self._stack.page()
        self._watch.see(page)
        if show is not None and page is not None:
            show.update(_line(page))

    def _tell(self) -> None:
        """Print what the parts have to say: each listens when it does, and nobody waited for it."""
        for line in self._stack.news():
            print(line, file=sys.stderr, flush=True)

    def _cancellations(self) -> dict[str, int]:
        """Cancellations by cause so far. Asked before the load is stopped: what that cuts, no client cancelled."""
        self._look(None)
        return counted(self._watch.last, "kvledger_cancellations_total", "cause")

    def _drain(self) -> int | None:
        """Active blocks once the engine is idle; None when it did not become so in time."""
        deadline = time.monotonic() + DRAIN_LIMIT_SECONDS
        while time.monotonic() < deadline:
            self._look(None)
            page = self._watch.last
            active = None if page is None else page.sum("kvledger_pool_blocks", state="active")
            if active is not None and page is not None and page.sum("kvledger_engine_idle") == 1:
                return int(active)
            time.sleep(POLL_SECONDS / 4)
        return None

    def _sum_up(
        self,
        elapsed: float,
        urls: Mapping[str, str | None],
        report: dict[str, Any],
        active_after_drain: int | None,
        cancellations: Mapping[str, int],
    ) -> UpSummary:
        watch, page = self._watch, self._watch.last
        # The load was stopped by us in any case, and says so under this name.
        report = {name: value for name, value in report.items() if name != "interrupted"}
        return UpSummary(
            seconds=round(elapsed, 1),
            interrupted=self._interrupted,
            seed=self._stack.seed,
            trace=self._trace.name if self._trace else None,
            urls=urls,
            engine=dataclasses.asdict(self._stack.settings),
            samples=watch.samples,
            capacity_blocks=watch.capacity_blocks,
            shared_blocks=watch.peak["shared"],
            logical_blocks=watch.peak["logical"],
            active_blocks=watch.peak["active"],
            cached_blocks=watch.peak["cached"],
            leaked_blocks=watch.leaked_blocks,
            active_blocks_after_drain=active_after_drain,
            rejections=counted(page, "kvledger_rejections_total", "reason"),
            cancellations=cancellations,
            preemptions=int(page.sum("kvledger_preemptions_total") or 0) if page else 0,
            waits=waits_of(page) if page else {},
            findings=watch.findings,
            reasons=watch.reasons,
            load=report,
            problems=problems_of(watch, active_after_drain, report.get("failures", {})),
        )


def _command() -> str:
    """This command as another terminal can call it: make's has no virtual environment of ours on its path."""
    script = Path(sys.argv[0])
    if script.name != "kvledger":
        return f"{sys.executable} -m kvledger_agent"
    return os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script)


def _line(page: Page) -> str:
    def shown(name: str, **labels: str) -> str:
        value = page.sum(f"kvledger_{name}", **labels)
        return "?" if value is None else f"{value:,.0f}"

    return (
        f"active {shown('pool_blocks', state='active')} of {shown('pool_capacity_blocks')} blocks  "
        f"shared {shown('group_shared_blocks')}  waiting {shown('requests_waiting')}  "
        f"rejected {shown('rejections_total')}  leaked {shown('pool_leaked_blocks')}"
    )


@contextmanager
def _status() -> Iterator[Status | None]:
    """A line on a terminal that is rewritten once a second; nothing elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Status("up", console=console) as status:
        yield status
