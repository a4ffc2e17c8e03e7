"""The drill itself: three ways in which clients let go, and the wait for the level after each.

Every wait is for an event, for as long as the plan's patience: a slow server makes a drill longer, not wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from kvledger_agent.drill.errors import DrillImpossible
from kvledger_agent.drill.levels import READ_ERRORS, Level, Levels
from kvledger_agent.drill.plan import DrillPlan
from kvledger_agent.drill.report import DrillReport, Outcome, Phase
from kvledger_agent.drill.streams import Client, Clients
from kvledger_agent.errors import EndpointError
from kvledger_agent.load.client import first_model, open_session
from kvledger_agent.load.outcome import EndKind
from kvledger_agent.load.plan import RequestOptions

POLL_SECONDS, NUDGE_SECONDS = 0.1, 2.0
LAST_TOKENS = 8
"""Tokens of a storm's last requests, which run to their end."""
Say = Callable[[str], None]


async def drill(plan: DrillPlan, *, url: str, levels: Levels, say: Say) -> DrillReport:
    """Run all phases. Raises `DrillImpossible` where the server or its level cannot be had at all."""
    async with open_session(RequestOptions()) as session:
        try:
            model = plan.model or await first_model(session, url, within_seconds=plan.patience_seconds)
        except EndpointError as error:
            raise DrillImpossible(str(error)) from error
        run = _Drill(plan, Clients(session, url, model, plan), levels, say)
        return DrillReport(url=url, source=levels.source, phases=await run.phases())


class _Watch:
    """Readings of a level, one after the other; remembers the highest and the last trouble."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self.last: Level | None = None
        self.highest: float | None = None
        self.trouble: str | None = None

    async def read(self) -> Level | None:
        """One reading, None where this one failed."""
        try:
            self.last = await asyncio.to_thread(self._levels.read)
        except READ_ERRORS as error:
            self.trouble = str(error)
            return None
        self.trouble = None
        if self.last.blocks is not None:
            self.highest = max(self.last.blocks, self.highest or 0.0)
        return self.last


class _Drill:
    def __init__(self, plan: DrillPlan, clients: Clients, levels: Levels, say: Say) -> None:
        self._plan, self._clients, self._levels, self._say = plan, clients, levels, say
        self._now = asyncio.get_running_loop().time
        self._next = 0

    async def phases(self) -> tuple[Phase, ...]:
        """Cancel, time out, reconnect; each from the level that it finds."""
        return (
            await self._phase("cancel", self._cancel),
            await self._phase("timeout", self._time_out),
            await self._phase("reconnect storm", self._storm),
        )

    async def _phase(self, name: str, let_go: Callable[[_Watch, float], Awaitable[list[Client]]]) -> Phase:
        watch = _Watch(self._levels)
        self._say(f"{name}: waiting for an idle server ({self._plan.patience_seconds:g} s at most)")
        before, why = await self._idle(watch)
        if before is None:
            return Phase(name=name, outcome=Outcome.CANNOT_TELL, why=why)
        level = before.blocks or 0.0
        watch.highest = level
        self._say(f"{name}: {self._plan.clients} clients, the level is {level:g} blocks")
        clients = await let_go(watch, level)
        let_go_seconds = self._now()
        self._say(f"{name}: all have let go, waiting for the level")
        seconds, why = await self._back(watch, level, let_go_seconds)
        outcome = Outcome.NOT_BACK if seconds is None else Outcome.CAME_BACK
        held = sum(client.held for client in clients)
        if watch.trouble is not None:
            outcome, why = Outcome.CANNOT_TELL, watch.trouble
        elif not held and watch.highest <= level:
            outcome, why = Outcome.CANNOT_TELL, f"no client held a block: {_endings(clients)}"
        after = watch.last
        phase = Phase(
            name=name,
            outcome=outcome,
            clients=len(clients),
            held=held,
            refused=sum(c.ending is not None and c.ending.kind is EndKind.REJECTED for c in clients),
            before_blocks=level,
            highest_blocks=watch.highest,
            after_blocks=None if after is None else after.blocks,
            came_back_seconds=seconds,
            why=why,
            findings=after.findings if after is not None else (),
        )
        self._say(f"{name}: {outcome.replace('_', ' ')}{'' if why is None else ', ' + why}")
        return phase

    # -- how clients let go -----------------------------------------------------------------------------------

    async def _cancel(self, watch: _Watch, level: float) -> list[Client]:
        """Every client has its first token, and the level shows it; then all connections are dropped."""
        clients = self._clients.open(self._numbers())
        await self._each([client.answered.wait() for client in clients])
        await self._until(lambda: _over(clients), watch, lambda now: (now.blocks or 0.0) > level)
        await self._drop(clients)
        return clients

    async def _time_out(self, watch: _Watch, level: float) -> list[Client]:
        """Every client gives up after the same time, wherever its request is."""
        clients = self._clients.open(self._numbers())
        give_up = asyncio.create_task(asyncio.sleep(self._plan.give_up_seconds))
        await self._until(give_up.done, watch, lambda now: False)
        await self._drop(clients)
        return clients

    async def _storm(self, watch: _Watch, level: float) -> list[Client]:
        """Every client drops its first token and comes again with the same prompt, and ends its last request."""
        numbers, every = self._numbers(), list[Client]()
        for round_number in range(self._plan.rounds):
            self._say(f"reconnect storm: round {round_number + 1} of {self._plan.rounds}")
            clients = self._clients.open(numbers)
            every += clients
            await self._each([client.answered.wait() for client in clients])
            await watch.read()
            await self._drop(clients)
        last = self._clients.open(numbers, max_tokens=min(LAST_TOKENS, self._plan.max_tokens))
        await self._each([client.ended() for client in last])
        await self._drop(last)
        return every + last

    # -- waiting -----------------------------------------------------------------------------------------------

    async def _idle(self, watch: _Watch) -> tuple[Level | None, str | None]:
        """A level at which nobody is there, sampled from now on; None, and why, where that does not come."""
        stamp = await self._stamp(watch)
        found = await self._until(
            lambda: False, watch, lambda now: now.stamp > stamp and (bool(now.missing) or not now.present)
        )
        if found is not None and not found.missing:
            return found, None
        if found is not None:
            return None, self._untold(found)
        if watch.last is None or watch.trouble is not None:
            return None, f"no reading: {watch.trouble}"
        return None, f"{watch.last.present} requests of others are there: a drill needs a server without traffic"

    async def _back(self, watch: _Watch, level: float, since_seconds: float) -> tuple[float | None, str | None]:
        """The time until a reading, begun after the clients let go, shows the level and nobody there."""
        stamp = await self._stamp(watch)
        found = await self._until(
            lambda: False,
            watch,
            lambda now: now.stamp > stamp and now.is_back_to(level),
            nudge=self._levels.moves_with_steps,
        )
        if found is not None:
            return self._now() - since_seconds, None
        last = watch.last
        if last is None or last.stamp <= stamp:
            watch.trouble = watch.trouble or f"{self._levels.source} has had no new sample"
            return None, None
        if last.missing:
            watch.trouble = self._untold(last)
            return None, None
        more = (last.blocks or 0.0) - level
        stays = f"{more:g} blocks more than before" if more > 0 else f"{last.present} requests are still there"
        named = f", findings: {', '.join(last.findings)}" if last.findings else ""
        return None, f"{stays} after {self._plan.patience_seconds:g} s{named}"

    def _untold(self, level: Level) -> str:
        return f"{self._levels.source} does not tell: {', '.join(level.missing)}"

    async def _stamp(self, watch: _Watch) -> int:
        """That of a reading now. What has happened until now is in every reading with a larger one."""
        first = await self._until(lambda: False, watch, lambda now: True)
        return 0 if first is None else first.stamp

    async def _until(
        self, over: Callable[[], bool], watch: _Watch, holds: Callable[[Level], bool], *, nudge: bool = False
    ) -> Level | None:
        """The first reading of which this holds; None when it is over or patience is."""
        end = self._now() + self._plan.patience_seconds
        nudge_at = self._now() + NUDGE_SECONDS
        while True:
            level = await watch.read()
            if level is not None and holds(level):
                return level
            if over() or self._now() >= end:
                return None
            if nudge and self._now() >= nudge_at:
                await self._nudge()
                nudge_at = self._now() + NUDGE_SECONDS
            await asyncio.sleep(POLL_SECONDS)

    async def _nudge(self) -> None:
        """One token, so that an engine that only tells of itself when it steps takes a step."""
        clients = self._clients.open([self._take(1).start], max_tokens=1, prompt_tokens=1)
        await self._each([client.ended() for client in clients])
        await self._drop(clients)

    async def _each(self, waits: Sequence[Awaitable[object]]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._plan.patience_seconds):
                await asyncio.gather(*waits)

    async def _drop(self, clients: Sequence[Client]) -> None:
        await asyncio.gather(*(client.drop() for client in clients))

    def _numbers(self) -> range:
        return self._take(self._plan.clients)

    def _take(self, count: int) -> range:
        self._next += count
        return range(self._next - count, self._next)


def _over(clients: Sequence[Client]) -> bool:
    return all(client.ending is not None for client in clients)


def _endings(clients: Sequence[Client]) -> str:
    words = sorted({client.ending.detail or client.ending.kind for client in clients if client.ending is not None})
    return ", ".join(words) or "none was answered"
