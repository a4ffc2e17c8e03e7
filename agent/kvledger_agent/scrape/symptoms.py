"""What a series of readings shows to be wrong with one rank, how sure that is, and what its page cannot tell.

Keeps when each condition began; reads no clock and no page. A finding needs its condition for longer than the
engine's own numbers can be old.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvledger.clock import NS_PER_SECOND
from kvledger.words import SYMPTOM_KINDS, FindingKind
from kvledger_agent.finding import Finding
from kvledger_agent.scrape.conditions import (
    MOVING,
    Moved,
    Shown,
    condition,
    held_blocks,
    holds_last_value,
    judged_kinds,
)
from kvledger_agent.scrape.observe import is_idle
from kvledger_agent.scrape.profile import EngineProfile
from kvledger_agent.scrape.reading import EngineReading

IDLE_PERIODS = 3


@dataclass(slots=True)
class _Since:
    """Since when a condition holds, in how many readings, and the finding it has become."""

    began_ns: int
    began_wall_ns: int
    samples: int = 0
    finding: Finding | None = None


class SymptomTracker:
    """The symptoms of one rank. `update` takes readings in order of time."""

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._before: EngineReading | None = None
        self._since: dict[FindingKind, _Since] = {}
        self._idle_periods: list[int] = []
        self._seq = 0

    def judged(self, reading: EngineReading) -> tuple[FindingKind, ...]:
        """The kinds that this reading allows to be told at all."""
        return judged_kinds(self._profile, reading)

    def update(self, reading: EngineReading) -> tuple[Finding, ...]:
        """Take in one reading; the findings that are open now."""
        self._seq += 1
        before, self._before = self._before, reading
        if before is not None and _restarted(before, reading):
            self._since, self._idle_periods, before = {}, [], None
        moved = Moved() if before is None else Moved(work=_moved(before, reading), fetches=_fetched(before, reading))
        self._count_idle_periods(reading, moved=moved.work)
        shown = dict(self._shown(reading, moved=moved))
        untold = set(SYMPTOM_KINDS) - set(self.judged(reading))
        # A page that is silent about a finding for once does not close it; a suspicion starts anew.
        kept = {kind for kind, since in self._since.items() if kind in untold and since.finding and not moved.work}
        self._since = {kind: since for kind, since in self._since.items() if kind in shown or kind in kept}
        for kind, what in shown.items():
            self._take(kind, what, reading)
        return tuple(since.finding for _, since in sorted(self._since.items()) if since.finding is not None)

    def _shown(self, reading: EngineReading, *, moved: Moved) -> Iterator[tuple[FindingKind, Shown]]:
        """The conditions that hold at this reading."""
        for kind in self.judged(reading):
            shown = condition(kind, self._profile, reading, moved)
            if shown is not None:
                if kind is FindingKind.IDLE_HOLD and holds_last_value(self._profile):
                    shown = replace(shown, samples=1, ready=len(self._idle_periods) >= IDLE_PERIODS)
                yield kind, shown

    def _count_idle_periods(self, reading: EngineReading, *, moved: bool) -> None:
        """Of an engine whose gauges stop with its work, each idle period is one look, however long it lasts."""
        held = held_blocks(reading)
        if held is None or held <= 0:
            self._idle_periods = []
        elif is_idle(reading) and (moved or not self._idle_periods):
            self._idle_periods.append(held)

    def _take(self, kind: FindingKind, shown: Shown, reading: EngineReading) -> None:
        """Count a condition that holds; once it has held long enough, it is a finding."""
        since = self._since.setdefault(kind, _Since(reading.monotonic_ns, reading.wall_ns))
        since.samples += 1
        lasted = (reading.monotonic_ns - since.began_ns) / NS_PER_SECOND
        if since.finding is None:
            if lasted < shown.seconds or since.samples < shown.samples or not shown.ready:
                return
            since.finding = self._new(kind, shown, since, reading)
        since.finding = replace(since.finding, block_count=shown.blocks, seen_clock_ns=reading.monotonic_ns)

    def _new(self, kind: FindingKind, shown: Shown, since: _Since, reading: EngineReading) -> Finding:
        size = reading.block_bytes
        return Finding(
            kind=kind,
            blocks=(),
            block_count=shown.blocks,
            bytes=None if shown.blocks is None or size is None else shown.blocks * size,
            seq=self._seq,
            since_clock_ns=since.began_ns,
            since_wall_seconds=since.began_wall_ns / NS_PER_SECOND,
            found_clock_ns=reading.monotonic_ns,
            seen_clock_ns=reading.monotonic_ns,
            owner=None,
            candidates=(),
            known=shown.known,
            certainty=shown.certainty,
            blind=shown.blind,
        )


def _moved(before: EngineReading, now: EngineReading) -> bool:
    """Whether a counter shows work between two readings."""
    pairs = [(getattr(before, name), getattr(now, name)) for name in MOVING]
    pairs.append((_sum(before.finished_total), _sum(now.finished_total)))
    return any(a is not None and b is not None and b > a for a, b in pairs)


def _fetched(before: EngineReading, now: EngineReading) -> bool:
    """Whether fetches changed stage, brought tokens, or let a deferred request go."""
    return (
        before.fetch_stages != now.fetch_stages
        or before.transferred_tokens_total != now.transferred_tokens_total
        or (before.deferred or 0) > (now.deferred or 0)
    )


def _restarted(before: EngineReading, now: EngineReading) -> bool:
    """Whether a counter went back: it is another start of the engine."""
    pairs = [(getattr(before, name), getattr(now, name)) for name in MOVING]
    return any(a is not None and b is not None and b < a for a, b in pairs)


def _sum(counts: object) -> float | None:
    return math.fsum(counts.values()) if isinstance(counts, dict) else None
