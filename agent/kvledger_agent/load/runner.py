"""The open loop: every request goes out at its intended time, whatever became of the earlier ones. Draws nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import suppress

from kvledger_agent.load.arrivals import FINISH, Arrival, FateKind
from kvledger_agent.load.client import CompletionClient, first_model, open_session
from kvledger_agent.load.outcome import EndKind
from kvledger_agent.load.plan import LoadPlan
from kvledger_agent.load.report import LoadReport, report_of
from kvledger_agent.load.tally import Progress, Tally
from kvledger_agent.load.tokens import PromptWriter

PROGRESS_SECONDS = 0.5
OnProgress = Callable[[Progress], None]


class Stop:
    """How a run is ended from outside: asked once, no more arrivals; asked again, open requests are cut too."""

    def __init__(self) -> None:
        """Nothing asked yet. Create it inside the running event loop."""
        self.arrivals_over = asyncio.Event()
        self.cut_now = asyncio.Event()

    def ask(self) -> None:
        """Ask once, or once more."""
        (self.cut_now if self.arrivals_over.is_set() else self.arrivals_over).set()


async def drive(
    plan: LoadPlan, *, base_url: str, on_progress: OnProgress | None = None, stop: Stop | None = None
) -> LoadReport:
    """Carry out a plan against an endpoint and report once every request has ended.

    Args:
        plan: what to send and when.
        base_url: the endpoint, with or without `/v1`.
        on_progress: called twice a second, and once at the end.
        stop: ask it to end the arrivals early; open requests still get the plan's drain time.

    Raises:
        EndpointError: the plan names no model and the endpoint does not either.
        UsageError: the address or the plan is unusable.
        CancelledError: this task was cancelled; every request has been closed by then.
    """
    options = plan.options
    writer = PromptWriter(seed=plan.seed, prompt_as=options.prompt_as, below=options.token_ids_below)
    async with open_session(options) as session:
        model = options.model or await first_model(session, base_url, within_seconds=options.connect_seconds)
        client = CompletionClient(session, base_url=base_url, model=model, options=options, writer=writer)
        run = _Run(plan, client, stop or Stop())
        elapsed_seconds = await run.to_the_end(on_progress)
    return report_of(
        run.tally,
        plan,
        base_url=base_url,
        model=model,
        interrupted=run.interrupted,
        elapsed_seconds=elapsed_seconds,
    )


class _Run:
    """One run of one plan: the tasks of the open requests, and the tally."""

    def __init__(self, plan: LoadPlan, client: CompletionClient, stop: Stop) -> None:
        self.tally = Tally()
        self.interrupted = False
        self._plan = plan
        self._client = client
        self._stop = stop
        self._bug: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._now = asyncio.get_running_loop().time
        self._start_seconds = self._now()

    async def to_the_end(self, on_progress: OnProgress | None) -> float:
        """Send, drain, cut. Returns the seconds it took; cancelled, it still closes every request first."""
        ticker = asyncio.create_task(self._tick(on_progress)) if on_progress else None
        try:
            await self._send_all()
            await self._drain()
        finally:
            if ticker:
                ticker.cancel()
            await self._cut()
        elapsed_seconds = self._now() - self._start_seconds
        if on_progress:
            on_progress(self.tally.progress(elapsed_seconds))
        return elapsed_seconds

    async def _send_all(self) -> None:
        for arrival in self._plan.arrivals():
            intended_seconds = self._start_seconds + arrival.at_seconds
            await self._wait_until(intended_seconds)
            if self._stop.arrivals_over.is_set():
                self.interrupted = True
                return
            self.tally.arrivals += 1
            if self.tally.in_flight >= self._plan.max_in_flight:
                self.tally.dropped += 1
                continue
            self.tally.count_sent()
            task = asyncio.create_task(self._request(arrival, intended_seconds))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    async def _wait_until(self, when_seconds: float) -> None:
        delay_seconds = when_seconds - self._now()
        if delay_seconds <= 0:
            # A generator that is behind must still let its open requests read, or it would never catch up.
            await asyncio.sleep(0)
        elif not self._stop.arrivals_over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_seconds):
                    await self._stop.arrivals_over.wait()

    async def _request(self, arrival: Arrival, intended_seconds: float) -> None:
        outcome = await self._client.send(arrival, intended_seconds=intended_seconds)
        self.tally.count(outcome)
        reconnects = arrival.fate.kind is FateKind.RECONNECT and outcome.ending.kind is EndKind.CANCELLED
        if not reconnects or self._stop.arrivals_over.is_set():
            return
        self.tally.reconnects += 1
        self.tally.count_sent()
        again = dataclasses.replace(arrival, fate=FINISH)
        self.tally.count(await self._client.send(again, intended_seconds=self._now()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        # Here and not in the request itself: a task cancelled before its first step runs no line of its own.
        self._tasks.discard(task)
        if task.cancelled():
            self.tally.count_cut()
        elif error := task.exception():
            self._bug = self._bug or error
            self._stop.arrivals_over.set()

    async def _drain(self) -> None:
        if not self._tasks:
            return
        waiters = {asyncio.ensure_future(asyncio.wait(self._tasks)), asyncio.ensure_future(self._stop.cut_now.wait())}
        try:
            await asyncio.wait(waiters, timeout=self._plan.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _cut(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._bug:
            raise self._bug

    async def _tick(self, on_progress: OnProgress) -> None:
        while True:
            on_progress(self.tally.progress(self._now() - self._start_seconds))
            await asyncio.sleep(PROGRESS_SECONDS)
