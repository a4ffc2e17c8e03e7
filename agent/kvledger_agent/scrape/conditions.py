"""The conditions that a reading can show: how long each must hold, how sure it is, what stays unknown. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from kvledger.words import SYMPTOM_KINDS, Certainty, FindingKind
from kvledger_agent.scrape.observe import is_idle
from kvledger_agent.scrape.profile import EngineProfile
from kvledger_agent.scrape.reading import EngineReading

LEAST_SAMPLES = 3
IDLE_HOLD_SECONDS = 90.0
BEYOND_STALENESS_SECONDS = 60.0
RANGE_SAMPLES = 2
STALL_SECONDS = 120.0
FROZEN_SECONDS = 300.0
"""Longer than a long prefill, which emits nothing until it is done."""
DEFERRED_SECONDS = 300.0
MOVING = ("prompt_tokens_total", "generation_tokens_total", "iterations_total", "preemptions_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What moved between two readings: any work, or KV that is fetched from elsewhere."""

    work: bool = False
    fetches: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
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


def held_blocks(reading: EngineReading) -> int | None:
    """Active blocks that no session holds on purpose."""
    active = reading.active_blocks
    if active is None:
        return None
    return max(0, active - (reading.held_by_sessions_blocks or 0))


def _idle_hold(profile: EngineProfile, reading: EngineReading, moved: Moved) -> Shown | None:
    held = held_blocks(reading)
    if moved.work or not is_idle(reading) or not held or reading.deferred_releases or reading.unsure:
        return None
    certainty = Certainty.POSSIBLE if holds_last_value(profile) or reading.transfers_possible else Certainty.LIKELY
    return Shown(
        seconds=idle_hold_seconds(profile, reading),
        known=f"nothing runs or waits, and {held:,} blocks are held",
        certainty=certainty,
        blind=f"which blocks, and whose they were; {profile.blind}",
        blocks=held,
    )


def _out_of_range(profile: EngineProfile, reading: EngineReading, moved: Moved) -> Shown | None:
    usage, capacity = reading.usage_ratio, reading.capacity_blocks
    most = max(reading.free_blocks or 0, reading.cached_blocks or 0, reading.active_blocks or 0)
    least = min(reading.free_blocks or 0, reading.cached_blocks or 0, reading.active_blocks or 0)
    beyond = (usage is not None and not -1e-6 <= usage <= 1 + 1e-6) or least < 0
    if not beyond and (capacity is None or most <= capacity):
        return None
    what = f"a usage of {usage:.2%}" if usage is not None and not 0 <= usage <= 1 else "more blocks than there are"
    return Shown(
        seconds=0.0,
        samples=RANGE_SAMPLES,
        known=f"the page says {what}: blocks were given back twice, or are counted wrongly",
        certainty=Certainty.CERTAIN,
        blind=f"which blocks, and how many; {profile.blind}",
    )


def _waiting_without_running(profile: EngineProfile, reading: EngineReading, moved: Moved) -> Shown | None:
    waiting = (reading.waiting or 0) - (reading.deferred or 0)
    if moved.work or reading.running or waiting <= 0 or reading.transfers:
        return None
    return Shown(
        seconds=STALL_SECONDS + _staleness(profile),
        known="requests wait, none runs, and no counter moves",
        certainty=Certainty.POSSIBLE if holds_last_value(profile) else Certainty.LIKELY,
        blind=f"what they wait for, and whether one of them can fit at all; {profile.blind}",
    )


def _frozen_counters(profile: EngineProfile, reading: EngineReading, moved: Moved) -> Shown | None:
    if moved.work or not reading.running:
        return None
    return Shown(
        seconds=FROZEN_SECONDS,
        known="requests run, and no counter of tokens moves",
        certainty=Certainty.POSSIBLE if reading.iterations_total is None else Certainty.LIKELY,
        blind=f"whether the engine hangs, or a very long prefill runs; {profile.blind}",
    )


def _deferred(profile: EngineProfile, reading: EngineReading, moved: Moved) -> Shown | None:
    if not reading.deferred:
        return None
    # Where the page tells of fetches, others may run meanwhile; elsewhere only a standstill says anything.
    still = not moved.fetches if reading.fetch_stages is not None else not (moved.work or reading.running)
    if not still:
        return None
    what = "no fetch moves" if reading.fetch_stages is not None else "none runs, and no counter moves"
    return Shown(
        seconds=DEFERRED_SECONDS,
        known=f"requests wait for something other than capacity, and {what}",
        certainty=Certainty.POSSIBLE,
        blind=f"for what: KV from elsewhere, a grammar or an adapter; {profile.blind}",
    )


def _staleness(profile: EngineProfile) -> float:
    """How old an idle engine's numbers can be; 0 where they hold their last value, which no waiting makes newer."""
    return 0.0 if holds_last_value(profile) else profile.semantics.stale_when_idle_seconds or 0.0


def holds_last_value(profile: EngineProfile) -> bool:
    """Whether the gauges stop with the work, so that they may still tell of a request that has ended."""
    return math.isinf(profile.semantics.stale_when_idle_seconds or 0.0)


def _has_counters(reading: EngineReading) -> bool:
    """Whether the page has any counter that a request moves, if only when it ends."""
    return any(getattr(reading, name) is not None for name in (*MOVING, "finished_total"))


def _has_progress(profile: EngineProfile, reading: EngineReading) -> bool:
    """Whether the page has a counter that moves while a request runs, not only when it ends."""
    late = profile.semantics.sampled_at_finish_only
    return any(getattr(reading, name) is not None for name in MOVING[:3] if name not in late)


_JUDGES: dict[FindingKind, Callable[[EngineProfile, EngineReading], bool]] = {
    FindingKind.IDLE_HOLD: lambda p, r: (
        p.semantics.usage_includes_evictable is False and r.active_blocks is not None and is_idle(r) is not None
    ),
    FindingKind.USAGE_OUT_OF_RANGE: lambda p, r: r.usage_ratio is not None,
    FindingKind.WAITING_WITHOUT_RUNNING: lambda p, r: is_idle(r) is not None and _has_counters(r),
    FindingKind.FROZEN_COUNTERS: lambda p, r: r.running is not None and _has_progress(p, r) and not holds_last_value(p),
    FindingKind.DEFERRED_WITHOUT_PROGRESS: lambda p, r: (
        r.deferred is not None and r.running is not None and _has_progress(p, r)
    ),
}
_CONDITIONS: dict[FindingKind, Callable[[EngineProfile, EngineReading, Moved], Shown | None]] = {
    FindingKind.IDLE_HOLD: _idle_hold,
    FindingKind.USAGE_OUT_OF_RANGE: _out_of_range,
    FindingKind.WAITING_WITHOUT_RUNNING: _waiting_without_running,
    FindingKind.FROZEN_COUNTERS: _frozen_counters,
    FindingKind.DEFERRED_WITHOUT_PROGRESS: _deferred,
}


def judged_kinds(profile: EngineProfile, reading: EngineReading) -> tuple[FindingKind, ...]:
    """The kinds that this reading allows to be told at all."""
    return tuple(kind for kind in SYMPTOM_KINDS if _JUDGES[kind](profile, reading))


def condition(kind: FindingKind, profile: EngineProfile, reading: EngineReading, moved: Moved) -> Shown | None:
    """What a reading shows of one kind; None where its condition does not hold."""
    return _CONDITIONS[kind](profile, reading, moved)
