"""Which field of an observation is which family of the catalogue. Names only: no arithmetic, no I/O.

Answers with label values -> value for one family, or None when the engine does not report it. A family that is
reported but has nothing to say at the moment (nobody waits) answers with an empty mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvledger import catalog
from kvledger.families.family import Family, Kind, Scope
from kvledger.status import ReadStatus
from kvledger.words import BlockState, NoteKind, Reason, Verdict
from kvledger_agent.observation import (
    LEDGER,
    GroupView,
    HistogramView,
    Labels,
    Observation,
    PoolView,
    RequestsView,
    Series,
)
from kvledger_agent.scorecard import cost_per_request, rejection_ratio, ttft_p95_seconds

Answer = Series | Mapping[Labels, HistogramView] | None

PER_SCRAPE = frozenset({"engine_heartbeat_age_seconds"})
"""Engine families whose value depends on the moment of the scrape; the exporter computes their ages itself."""


def answer(observation: Observation, family: Family) -> Answer:
    """What `observation` says about one engine, pool or group family of the catalogue. None: not reported."""
    if family.name == "capability":
        return _by_word({f.name: reported(observation, f) for f in engine_families() if f.name != "capability"})
    special = _VALUES.get(family.name)
    if special is not None:
        return special(observation)
    if family.kind is Kind.COUNTER:
        return observation.totals.counters.get(family.name)
    return observation.totals.histograms.get(family.name)


def reported(observation: Observation, family: Family) -> bool:
    """Whether the source knows this family at all, even if it has nothing to say right now."""
    if family.name in PER_SCRAPE:
        return observation.liveness.heartbeat_monotonic_ns is not None
    return answer(observation, family) is not None


def engine_families() -> tuple[Family, ...]:
    """The families that describe an engine, as opposed to the agent itself, in catalogue order."""
    return _ENGINE_FAMILIES


_ENGINE_FAMILIES = tuple(f for f in catalog.FAMILIES if f.scope is not Scope.AGENT)


def _one(value: float | None) -> Series | None:
    return None if value is None else {(): float(value)}


def _by_word(values: Mapping[str, float]) -> Series:
    return {(word,): float(value) for word, value in values.items()}


def _pool(field: Callable[[PoolView], float | None]) -> Callable[[Observation], Answer]:
    return lambda o: None if o.pool is None else _one(field(o.pool))


def _group(field: Callable[[GroupView], float | None]) -> Callable[[Observation], Answer]:
    def values(o: Observation) -> Series | None:
        return _by_word({g.name: value for g in o.groups if (value := field(g)) is not None}) or None

    return values


def _requests(field: Callable[[RequestsView], Series | None]) -> Callable[[Observation], Answer]:
    return lambda o: None if o.requests is None else field(o.requests)


def _number(field: Callable[[RequestsView], float | None]) -> Callable[[Observation], Answer]:
    return lambda o: None if o.requests is None else _one(field(o.requests))


def _figure(field: Callable[[Observation], float | None], *needs: str) -> Callable[[Observation], Answer]:
    """A figure of the scorecard, made of these families: without traffic it has no value and is known all the same."""

    def value(o: Observation) -> Series | None:
        is_kept = all(name in o.totals.counters or name in o.totals.histograms for name in needs)
        return (_one(field(o)) or {}) if is_kept else None

    return value


def _pool_blocks(o: Observation) -> Series | None:
    pool = o.pool
    if pool is None:
        return None
    counts = {
        BlockState.FREE.word: pool.free_blocks,
        BlockState.CACHED.word: pool.cached_blocks,
        BlockState.ACTIVE.word: pool.active_blocks,
    }
    # A page may tell active blocks and not which of the others are cached: what is known is shown, and no more.
    return _by_word({word: count for word, count in counts.items() if count is not None}) or None


def _pinned(o: Observation) -> Series | None:
    if o.pool is None or o.pool.pinned_blocks is None:
        return None
    return _by_word(o.pool.pinned_blocks)


def _exhaustion(o: Observation) -> Series | None:
    if o.pool is None or not o.pool.growth_known:
        return None
    return _one(o.pool.seconds_to_exhaustion) or {}


def _findings(o: Observation) -> Series | None:
    if o.findings is None:
        return None
    kinds = [f.kind for f in o.findings]
    return _by_word({kind.word: kinds.count(kind) for kind in o.judged})


def _notes(o: Observation) -> Series | None:
    if o.notes is None:
        return None
    kinds = [note.kind for note in o.notes]
    return _by_word({kind.word: kinds.count(kind) for kind in NoteKind})


def _closed(o: Observation) -> Series | None:
    return None if o.liveness.up is None or o.source != LEDGER else _one(o.liveness.status == ReadStatus.CLOSED)


def _verdict(o: Observation) -> Series | None:
    if o.verdict is None:
        return None
    return _by_word({word.word: word is o.verdict.verdict for word in Verdict})


def _reason(o: Observation) -> Series | None:
    if o.verdict is None:
        return None
    return _by_word({word.word: word is o.verdict.reason for word in Reason})


def _shares(o: Observation) -> Series | None:
    """Known of an engine whose requests are seen one by one; empty while nobody was there."""
    if o.verdict is None or o.verdict.request_time is None:
        return None
    return _by_word(o.verdict.request_time.shares)


_VALUES: Mapping[str, Callable[[Observation], Answer]] = {
    "pool_blocks": _pool_blocks,
    "pool_capacity_blocks": _pool(lambda p: p.capacity_blocks),
    "pool_pinned_blocks": _pinned,
    "pool_leaked_blocks": lambda o: _one(o.leaked_blocks),
    "pool_committed_blocks": _pool(lambda p: p.committed_blocks),
    "pool_peak_active_blocks": _pool(lambda p: p.peak_active_blocks),
    "pool_longest_free_run_blocks": _pool(lambda p: p.longest_free_run_blocks),
    "pool_budget_bytes": _pool(lambda p: p.budget_bytes),
    "pool_reserve_bytes": _pool(lambda p: p.reserve_bytes),
    "pool_alert_watermark_ratio": _pool(lambda p: p.alert_watermark_ratio),
    "pool_admission_watermark_blocks": _pool(lambda p: p.admission_watermark_blocks),
    "pool_seconds_to_exhaustion": _exhaustion,
    "group_logical_blocks": _group(lambda g: g.logical_blocks),
    "group_active_blocks": _group(lambda g: g.active_blocks),
    "group_shared_blocks": _group(lambda g: g.shared_blocks),
    "group_tail_waste_slots": _group(lambda g: g.tail_waste_slots),
    "group_block_size_tokens": _group(lambda g: g.block_size_tokens),
    "group_block_bytes": _group(lambda g: g.block_bytes),
    "group_bytes_per_token": _group(lambda g: g.bytes_per_token),
    "requests_live": _requests(lambda r: r.live),
    "requests_waiting": _requests(lambda r: r.waiting),
    "requests_never_fit": _number(lambda r: r.never_fit),
    "oldest_wait_seconds": _requests(lambda r: r.oldest_wait_seconds),
    "oldest_finishing_seconds": _number(lambda r: r.oldest_finishing_seconds),
    "tenant_blocks": _requests(lambda r: r.tenant_blocks),
    "tenant_quota_blocks": _requests(lambda r: r.tenant_quota_blocks),
    "effective_concurrency": _requests(lambda r: r.effective_concurrency),
    "requests_peak_running": _number(lambda r: r.peak_running),
    "length_tokens": _requests(lambda r: r.length_tokens),
    "maximum_concurrency": _requests(lambda r: r.maximum_concurrency),
    "scorecard_rejection_ratio": _figure(rejection_ratio, "rejections_total", "requests_total"),
    "scorecard_ttft_p95_seconds": _figure(ttft_p95_seconds, "time_to_first_token"),
    "scorecard_cost_per_request": _figure(cost_per_request, "cost_total", "requests_total"),
    "findings": _findings,
    "notes": _notes,
    "invariant_violations": lambda o: None if o.violations is None else _by_word(o.violations),
    "verdict": _verdict,
    "verdict_reason": _reason,
    "verdict_share": _shares,
    "engine_up": lambda o: _one(o.liveness.up),
    "engine_closed": _closed,
    "engine_heartbeat_age_seconds": lambda o: _one(o.liveness.heartbeat_age_seconds),
    "engine_idle": lambda o: _one(o.liveness.idle),
}
