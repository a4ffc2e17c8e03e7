"""Where requests' time went, one by one: the time to the first token and the whole time, cut into waits, prefill and
decode, with percentiles by tenant and by class; and who waits longest for what. Pure.

Of a request's life the same parts are counted as in the verdict's shares (`verdict.request_time`), and the allocator's
time apart, which no ledger keeps request by request: all who run wait while it works, so that its part of the steps'
time is taken out of everybody's prefill and decode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.snapshot import Sample
from kvledger.statsview import HistogramValue, StatsView
from kvledger.views import F64
from kvledger.words import RequestClass, WaitCause
from kvledger_agent.evidence import text
from kvledger_agent.lives import Lives
from kvledger_agent.observation import HistogramView
from kvledger_agent.observe_requests import tenant_names
from kvledger_agent.quantile import quantile
from kvledger_agent.verdict.request_time import WAITS, parts_of

PARTS = (*WAITS, "allocation", "prefill", "decode", "other")
_STEPS = ("schedule", "model", "sample", "publish")
_CLASSES, _CAUSES = RequestClass.words(), WaitCause.words()
_FOR_EVER_NS = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Seconds: the mean, and percentiles by nearest rank."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A length of time of `requests`, and of each part of it that is not zero for all; parts' means sum to its mean."""

    requests: int
    seconds: Quantiles
    parts: Mapping[str, Quantiles]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRow:
    """Requests of one tenant, or of one class, or all. `first_token`: those that got their first token in the window.
    `whole`: those that ended in it, however they did and whether they had begun or not. None where there were none.
    """

    tenant: str | None
    request_class: str | None
    first_token: Timing | None
    whole: Timing | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OldestWait:
    """The request that has waited longest among those that wait for one cause now, and how many there are."""

    cause: str
    waiting: int
    seconds: float
    serial: int
    id_head: str
    tenant: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsView:
    """One engine's waits in the last `window_seconds`; `rows` are all, then each tenant, then each class.

    `allocating` is the part of the steps' time that goes to the allocator, in the window of who watches or, at a single
    look, since the engine's start; `allocation` the time of one allocation since then, whose percentiles are what they
    do not exceed. None where it is not kept: the rows have no such part, and it is in prefill and decode.
    """

    window_seconds: float
    rows: tuple[WaitRow, ...]
    oldest: tuple[OldestWait, ...]
    allocating: float | None
    allocation: Quantiles | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """From when to when, and the allocator's part of the steps' time in it."""

    since_ns: int
    now_ns: int
    allocating: float | None


def waits_view(sample: Sample, lives: Lives, window_seconds: float, *, allocating: float | None = None) -> WaitsView:
    """The waits of a sample and of the requests that ended before it. `allocating` is that of the window, if known."""
    if allocating is None:
        allocating = _allocating(sample.stats)
    window = _Window(
        since_ns=sample.now_ns - round(window_seconds * NS_PER_SECOND), now_ns=sample.now_ns, allocating=allocating
    )
    tenants = np.array(tenant_names(sample, lives.tenant), dtype=object)
    kinds = np.where(lives.request_class < len(_CLASSES), lives.request_class, 0)
    rows = [_row(lives, window)]
    rows += [_row(lives.where(tenants == name), window, tenant=name) for name in sorted(set(tenants.tolist()))]
    rows += [
        _row(lives.where(kinds == number), window, kind=_CLASSES[number]) for number in sorted(set(kinds.tolist()))
    ]
    return WaitsView(
        window_seconds=window_seconds,
        rows=tuple(row for row in rows if row.first_token or row.whole or row.tenant == row.request_class),
        oldest=_oldest(sample),
        allocating=allocating,
        allocation=_allocation(sample.stats.histogram("allocation")),
    )


def _row(lives: Lives, window: _Window, *, tenant: str | None = None, kind: str | None = None) -> WaitRow:
    since_ns, now_ns = window.since_ns, window.now_ns
    began = (lives.first_token_ns > max(0, since_ns)) & (lives.first_token_ns <= now_ns)
    ended = ~lives.live & (lives.ended_ns > since_ns) & (lives.ended_ns <= now_ns)
    return WaitRow(
        tenant=tenant,
        request_class=kind,
        first_token=_timing(_until_first_token(lives.where(began)), window),
        whole=_timing(_until_the_end(lives.where(ended)), window),
    )


def _until_first_token(lives: Lives) -> Lives:
    return replace(lives, ended_ns=lives.first_token_ns, gone_ns=lives.first_token_ns)


def _until_the_end(lives: Lives) -> Lives:
    return replace(lives, gone_ns=lives.ended_ns)


def _timing(lives: Lives, window: _Window) -> Timing | None:
    if not len(lives):
        return None
    parts = _with_allocation(parts_of(lives, since_ns=_FOR_EVER_NS, now_ns=window.now_ns), window.allocating or 0.0)
    known = {part: parts[:, number] for number, part in enumerate(PARTS) if parts[:, number].any()}
    return Timing(
        requests=len(lives),
        seconds=quantiles(parts.sum(axis=1)),
        parts={part: quantiles(seconds) for part, seconds in known.items()},
    )


def _with_allocation(parts: F64, allocating: float) -> F64:
    """Seconds in each of this module's parts, from those in the verdict's."""
    waits, runs, other = np.split(parts, (len(WAITS), len(WAITS) + 2), axis=1)
    allocation = allocating * runs.sum(axis=1, keepdims=True)
    return np.hstack((waits, allocation, (1.0 - allocating) * runs, other))


def _allocating(stats: StatsView) -> float | None:
    """The allocator's part of the steps' time since the counters began; None where not kept, or without a step."""
    allocation = stats.histogram("allocation")
    steps = [stats.histogram("step", phase=phase) for phase in _STEPS]
    seconds = sum(step.sum for step in steps if step is not None)
    return None if allocation is None or not seconds > 0 else float(min(1.0, max(0.0, allocation.sum / seconds)))


def quantiles(seconds: F64) -> Quantiles:
    """Mean and percentiles of at least one length of time."""
    ordered = np.sort(seconds)
    at = (np.ceil(np.array([0.5, 0.95, 0.99]) * len(ordered)).astype(int) - 1).tolist()
    p50, p95, p99 = (float(ordered[index]) for index in at)
    return Quantiles(mean=float(ordered.mean()), p50=p50, p95=p95, p99=p99)


def _oldest(sample: Sample) -> tuple[OldestWait, ...]:
    """The longest open wait of each cause that somebody waits for, the longest of all first."""
    slots, causes = sample.slots, sample.wait_causes()
    found = []
    for cause in sorted(set(causes[causes >= 0].tolist())):
        waiting = np.flatnonzero(causes == cause)
        row = int(waiting[np.argmin(slots.queued_ns[waiting])])
        found.append(
            OldestWait(
                cause=_CAUSES[cause],
                waiting=len(waiting),
                seconds=max(0.0, (sample.now_ns - int(slots.queued_ns[row])) / NS_PER_SECOND),
                serial=int(slots.serial[row]),
                id_head=text(slots.id_head[row]),
                tenant=tenant_names(sample, slots.tenant[row : row + 1])[0],
            )
        )
    return tuple(sorted(found, key=lambda wait: -wait.seconds))


def _allocation(histogram: HistogramValue | None) -> Quantiles | None:
    """The mean, and what the percentiles do not exceed; None where not kept, or where nothing bounds them."""
    if histogram is None:
        return None
    view = HistogramView(bounds=histogram.bounds, buckets=histogram.buckets, sum=histogram.sum)
    ends = [found.high for share in (0.5, 0.95, 0.99) if (found := quantile(share, view)) and found.high is not None]
    if len(ends) < 3:
        return None
    p50, p95, p99 = ends
    return Quantiles(mean=histogram.sum / histogram.count, p50=p50, p95=p95, p99=p99)
