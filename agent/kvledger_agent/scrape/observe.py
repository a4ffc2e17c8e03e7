"""A reading as an `Observation`, so that exporters, API and commands see a scraped engine as any other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvledger.status import ReadStatus
from kvledger.words import FindingKind, PreemptionMode, RequestClass, RequestState
from kvledger_agent.finding import Finding
from kvledger_agent.observation import (
    SCRAPED,
    Clock,
    GroupView,
    HistogramView,
    Identity,
    Labels,
    Liveness,
    Observation,
    PoolView,
    RequestsView,
    Series,
    Totals,
)
from kvledger_agent.scrape.profile import EngineProfile
from kvledger_agent.scrape.reading import EngineReading

UNNAMED_MODEL = "unknown"
TENANT = "default"
"""An engine's page knows no tenants; those of a family that has them are all of this one, as in an engine without."""
_CLASS = RequestClass.DEFAULT.word
_PLAIN = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "prefix_queried_tokens_total",
    "prefix_hit_tokens_total",
)


def observation_of(
    reading: EngineReading,
    findings: Iterable[Finding],
    *,
    name: str,
    profile: EngineProfile,
    judged: Iterable[FindingKind],
    seq: int,
    last_served: bool = False,
) -> Observation:
    """The observation of engine `name`. `last_served` says that it is of an earlier scrape, as a newer one failed."""
    idle = is_idle(reading)
    status = ReadStatus.LAST_GOOD if last_served else ReadStatus.IDLE if idle else ReadStatus.OK
    return Observation(
        identity=Identity(engine=name, rank=reading.rank, model=reading.model or UNNAMED_MODEL, pool=profile.pool),
        liveness=Liveness(
            status=status.value,
            up=None if last_served else True,
            idle=None if last_served else idle,
            heartbeat_age_seconds=None,
            heartbeat_monotonic_ns=None,
            last_served=last_served,
        ),
        clock=Clock(
            published_ns=reading.monotonic_ns, now_ns=reading.monotonic_ns, wall_ns=reading.wall_ns, virtual=False
        ),
        published_seq=seq,
        pool=_pool(reading),
        groups=_groups(reading, profile.pool),
        requests=_requests(reading),
        totals=Totals(counters=_counters(reading, profile), histograms=_histograms(reading)),
        findings=tuple(findings),
        judged=tuple(judged),
        source=SCRAPED,
    )


def is_idle(reading: EngineReading) -> bool | None:
    """Whether nothing runs, waits or moves; None where the page does not tell, or tells a part of what moves."""
    if reading.running is None or reading.waiting is None:
        return None
    if reading.running or reading.waiting or reading.elsewhere or reading.transfers:
        return False
    return None if reading.unsure & {"elsewhere", "transfers"} else True


def _pool(reading: EngineReading) -> PoolView | None:
    view = PoolView(
        capacity_blocks=reading.capacity_blocks,
        free_blocks=reading.free_blocks,
        cached_blocks=reading.cached_blocks,
        active_blocks=reading.active_blocks,
        available_blocks=reading.available_blocks,
        usage_ratio=reading.usage_ratio,
        usage_includes_evictable=reading.usage_includes_evictable,
    )
    known = (view.capacity_blocks, view.free_blocks, view.cached_blocks, view.active_blocks, view.usage_ratio)
    return None if known == (None,) * len(known) else view


def _groups(reading: EngineReading, pool: str) -> tuple[GroupView, ...]:
    if reading.block_size_tokens is None and reading.block_bytes is None:
        return ()
    return (GroupView(name=pool, block_size_tokens=reading.block_size_tokens, block_bytes=reading.block_bytes),)


def _requests(reading: EngineReading) -> RequestsView | None:
    live: dict[Labels, float] = {}
    for state, number in ((RequestState.RUNNING, reading.running), (RequestState.WAITING, reading.waiting)):
        if number is not None:
            live[(state.word, _CLASS)] = float(number)
    if not live and reading.waiting_by_reason is None:
        return None
    return RequestsView(live=live or None, waiting_by_reason=reading.waiting_by_reason)


def _counters(reading: EngineReading, profile: EngineProfile) -> dict[str, Series]:
    counters: dict[str, Series] = {}
    for name in _PLAIN:
        if (value := getattr(reading, name)) is not None:
            counters[name] = {(): value}
    if reading.preemptions_total is not None:
        counters["preemptions_total"] = {(PreemptionMode.RECOMPUTE.word,): reading.preemptions_total}
    if reading.finished_total is not None:
        ended = _in_words(reading.finished_total, profile, "finished_total")
        counters["requests_total"] = {(word, TENANT): value for word, value in ended.items()}
    if reading.rejections_total is not None:
        refused = _in_words(reading.rejections_total, profile, "rejections_total")
        counters["rejections_total"] = {(word,): value for word, value in refused.items()}
    return {name: series for name, series in counters.items() if series}


def _in_words(counts: Mapping[str, float], profile: EngineProfile, signal: str) -> dict[str, float]:
    """Counts by the project's words; what has none is left out, and so is a sum of which a part is gone."""
    words = profile.words_of(signal)
    partial = {words[own] for own in profile.always_of(signal) if own not in counts}
    sums: dict[str, float] = {}
    for own, value in counts.items():
        if own in words and words[own] not in partial:
            sums[words[own]] = sums.get(words[own], 0.0) + value
    return sums


def _histograms(reading: EngineReading) -> dict[str, Mapping[Labels, HistogramView]]:
    known = (("time_to_first_token", reading.ttft_seconds), ("inter_token_latency", reading.itl_seconds))
    return {name: {(_CLASS,): view} for name, view in known if view is not None}
