"""What a series of readings shows to be wrong with one rank, how sure that is, and what its page cannot tell.

Keeps when each condition began; reads no clock and no page. A finding needs its condition for longer than the
engine's own numbers can be old.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvledger.words import SYMPTOM_KINDS, Certainty, FindingKind
from kvledger_agent.observation import Finding
from kvledger_agent.scrape.observe import is_idle
from kvledger_agent.scrape.profile import EngineProfile
from kvledger_agent.scrape.reading import EngineReading

NS = 1_000_000_000
LEAST_SAMPLES = 3
IDLE_HOLD_SECONDS = 90.0
BEYOND_STALENESS_SECONDS = 60.0
RANGE_SAMPLES = 2
STALL_SECONDS = 120.0
FROZEN_SECONDS = 300.0
"""Longer than a long prefill, which emits nothing until it is done."""
DEFERRED_SECONDS = 300.0
IDLE_PERIODS = 3

_MOVING = ("prompt_tokens_total", "generation_tokens_total", "iterations_total", "preemptions_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What moved between two readings: any work, or KV that is fetched from elsewhere."""

    work: bool = False
    fetches: bool = False


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
        return tuple(kind for kind in SYMPTOM_KINDS if _JUDGES[kind](self._profile, reading))

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

    def _shown(self, reading: EngineReading, *, moved: Moved) -> Iterator[tuple[FindingKind, _Shown]]:
        """The conditions that hold at this reading."""
        for kind in self.judged(reading):
            shown = _CONDITIONS[kind](self._profile, reading, moved)
            if shown is not None:
                if kind is FindingKind.IDLE_HOLD and _holds_last_value(self._profile):
                    shown = replace(shown, samples=1, ready=len(self._idle_periods) >= IDLE_PERIODS)
                yield kind, shown

    def _count_idle_periods(self, reading: EngineReading, *, moved: bool) -> None:
        """Of an engine whose gauges stop with its work, each idle period is one look, however long it lasts."""
        held = _held(reading)
        if held is None or held <= 0:
            self._idle_periods = []
        elif is_idle(reading) and (moved or not self._idle_periods):
            self._idle_periods.append(held)

    def _take(self, kind: FindingKind, shown: _Shown, reading: EngineReading) -> None:
        """Count a condition that holds; once it has held long enough, it is a finding."""
        since = self._since.setdefault(kind, _Since(reading.monotonic_ns, reading.wall_ns))
        since.samples += 1
        lasted = (reading.monotonic_ns - since.began_ns) / NS
        if since.finding is None:
            if lasted < shown.seconds or since.samples < shown.samples or not shown.ready:
                return
            since.finding = self._new(kind, shown, since, reading)
        since.finding = replace(since.finding, block_count=shown.blocks, seen_clock_ns=reading.monotonic_ns)

    def _new(self, kind: FindingKind, shown: _Shown, since: _Since, reading: EngineReading) -> Finding:
        size = reading.block_bytes
        return Finding(
            kind=kind,
            blocks=(),
            block_count=shown.blocks,
            bytes=None if shown.blocks is None or size is None else shown.blocks * size,
            seq=self._seq,
            since_clock_ns=since.began_ns,
            since_wall_seconds=since.began_wall_ns / 1e9,
            found_clock_ns=reading.monotonic_ns,
            seen_clock_ns=reading.monotonic_ns,
            owner=None,
            candidates=(),
            known=shown.known,
            certainty=shown.certainty,
            blind=shown.blind,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A condition that holds: how long and how often it must, what it says, how sure it is, what cannot be told."""

    seconds: float
    known: str
    certainty: Certainty
    blind: str
    blocks: int | None = None
    samples: int = LEAST_SAMPLES
    ready: bool = True


def idle_hold_seconds(profile: EngineProfile, reading: EngineReading) -> float:
    """How long an idle pool must hold blocks: beyond the engine's staleness, and its leases where KV may be moved."""
    stale = _staleness(profile)
    lease = profile.semantics.lease_seconds if reading.transfers_possible else 0.0
    return max(IDLE_HOLD_SECONDS, stale + BEYOND_STALENESS_SECONDS, lease + BEYOND_STALENESS_SECONDS)


def _held(reading: EngineReading) -> int | None:
    """Active blocks that no session holds on purpose."""
    active = reading.active_blocks
    if active is None:
        return None
    return max(0, active - (reading.held_by_sessions_blocks or 0))


def _idle_hold(profile: EngineProfile, reading: EngineReading, moved: Moved) -> _Shown | None:
    held = _held(reading)
    if moved.work or not is_idle(reading) or not held or reading.deferred_releases or reading.unsure:
        return None
    certainty = Certainty.POSSIBLE if _holds_last_value(profile) or reading.transfers_possible else Certainty.LIKELY
    return _Shown(
        seconds=idle_hold_seconds(profile, reading),
        known=f"nothing runs or waits, and {held:,} blocks are held",
        certainty=certainty,
        blind=f"which blocks, and whose they were; {profile.blind}",
        blocks=held,
    )


def _out_of_range(profile: EngineProfile, reading: EngineReading, moved: Moved) -> _Shown | None:
    usage, capacity = reading.usage_ratio, reading.capacity_blocks
    most = max(reading.free_blocks or 0, reading.cached_blocks or 0, reading.active_blocks or 0)
    least = min(reading.free_blocks or 0, reading.cached_blocks or 0, reading.active_blocks or 0)
    beyond = (usage is not None and not -1e-6 <= usage <= 1 + 1e-6) or least < 0
    if not beyond and (capacity is None or most <= capacity):
        return None
    what = f"a usage of {usage:.2%}" if usage is not None and not 0 <= usage <= 1 else "more blocks than there are"
    return _Shown(
        seconds=0.0,
        samples=RANGE_SAMPLES,
        known=f"the page says {what}: blocks were given back twice, or are counted wrongly",
        certainty=Certainty.CERTAIN,
        blind=f"which blocks, and how many; {profile.blind}",
    )


def _waiting_without_running(profile: EngineProfile, reading: EngineReading, moved: Moved) -> _Shown | None:
    waiting = (reading.waiting or 0) - (reading.deferred or 0)
    if moved.work or reading.running or waiting <= 0 or reading.transfers:
        return None
    return _Shown(
        seconds=STALL_SECONDS + _staleness(profile),
        known="requests wait, none runs, and no counter moves",
        certainty=Certainty.POSSIBLE if _holds_last_value(profile) else Certainty.LIKELY,
        blind=f"what they wait for, and whether one of them can fit at all; {profile.blind}",
    )


def _frozen_counters(profile: EngineProfile, reading: EngineReading, moved: Moved) -> _Shown | None:
    if moved.work or not reading.running:
        return None
    return _Shown(
        seconds=FROZEN_SECONDS,
        known="requests run, and no counter of tokens moves",
        certainty=Certainty.POSSIBLE if reading.iterations_total is None else Certainty.LIKELY,
        blind=f"whether the engine hangs, or a very long prefill runs; {profile.blind}",
    )


def _deferred(profile: EngineProfile, reading: EngineReading, moved: Moved) -> _Shown | None:
    if not reading.deferred:
        return None
    # Where the page tells of fetches, others may run meanwhile; elsewhere only a standstill says anything.
    still = not moved.fetches if reading.fetch_stages is not None else not (moved.work or reading.running)
    if not still:
        return None
    what = "no fetch moves" if reading.fetch_stages is not None else "none runs, and no counter moves"
    return _Shown(
        seconds=DEFERRED_SECONDS,
        known=f"requests wait for something other than capacity, and {what}",
        certainty=Certainty.POSSIBLE,
        blind=f"for what: KV from elsewhere, a grammar or an adapter; {profile.blind}",
    )


def _staleness(profile: EngineProfile) -> float:
    """How old an idle engine's numbers can be; 0 where they hold their last value, which no waiting makes newer."""
    return 0.0 if _holds_last_value(profile) else profile.semantics.stale_when_idle_seconds or 0.0


def _holds_last_value(profile: EngineProfile) -> bool:
    """Whether the gauges stop with the work, so that they may still tell of a request that has ended."""
    return math.isinf(profile.semantics.stale_when_idle_seconds or 0.0)


def _moved(before: EngineReading, now: EngineReading) -> bool:
    """Whether a counter shows work between two readings."""
    pairs = [(getattr(before, name), getattr(now, name)) for name in _MOVING]
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
    pairs = [(getattr(before, name), getattr(now, name)) for name in _MOVING]
    return any(a is not None and b is not None and b < a for a, b in pairs)


def _sum(counts: object) -> float | None:
    return math.fsum(counts.values()) if isinstance(counts, dict) else None


def _has_counters(reading: EngineReading) -> bool:
    """Whether the page has any counter that a request moves, if only when it ends."""
    return any(getattr(reading, name) is not None for name in (*_MOVING, "finished_total"))


def _has_progress(profile: EngineProfile, reading: EngineReading) -> bool:
    """Whether the page has a counter that moves while a request runs, not only when it ends."""
    late = profile.semantics.sampled_at_finish_only
    return any(getattr(reading, name) is not None for name in _MOVING[:3] if name not in late)


_JUDGES: dict[FindingKind, Callable[[EngineProfile, EngineReading], bool]] = {
    FindingKind.IDLE_HOLD: lambda p, r: (
        p.semantics.usage_includes_evictable is False and r.active_blocks is not None and is_idle(r) is not None
    ),
    FindingKind.USAGE_OUT_OF_RANGE: lambda p, r: r.usage_ratio is not None,
    FindingKind.WAITING_WITHOUT_RUNNING: lambda p, r: is_idle(r) is not None and _has_counters(r),
    FindingKind.FROZEN_COUNTERS: lambda p, r: (
        r.running is not None and _has_progress(p, r) and not _holds_last_value(p)
    ),
    FindingKind.DEFERRED_WITHOUT_PROGRESS: lambda p, r: (
        r.deferred is not None and r.running is not None and _has_progress(p, r)
    ),
}
_CONDITIONS: dict[FindingKind, Callable[[EngineProfile, EngineReading, Moved], _Shown | None]] = {
    FindingKind.IDLE_HOLD: _idle_hold,
    FindingKind.USAGE_OUT_OF_RANGE: _out_of_range,
    FindingKind.WAITING_WITHOUT_RUNNING: _waiting_without_running,
    FindingKind.FROZEN_COUNTERS: _frozen_counters,
    FindingKind.DEFERRED_WITHOUT_PROGRESS: _deferred,
}
