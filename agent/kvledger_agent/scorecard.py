"""The scorecard: seven figures of one engine side by side, from one observation. Pure; unknown is None, never 0.

Rates, quantiles and cost are over everything that the engine's counters hold, its earlier starts included: one look
has no other range. Command, API and the gauges that boards show are all of these functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvledger_agent.observation import Observation, RequestsView, Series
from kvledger_agent.quantile import Quantile, merged, quantile
from kvledger_agent.sums import sum_if_known

TTFT_SHARE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveItem:
    """Memory that no request's blocks can be in, or not when it is admitted. `subtracted`: the pool is without it.

    `part_of` names the item that this one is a part of; parts of which the engine does not know the size are in no sum.
    """

    name: str
    bytes: int | None
    blocks: int | None
    subtracted: bool
    part_of: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How many requests of a length fit at once: blocks of the pool over blocks of such a request."""

    percentile: int
    length_tokens: int | None
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """What fits at the length percentiles, what was left out of it, and the most that ran in the last 60 s.

    `fits` is None while too few requests have ended; `budget_bytes` is memory for the cache and the reserve together.
    """

    fits: tuple[Fit, ...] | None
    reached: int | None
    budget_bytes: int | None
    reserve: tuple[ReserveItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorecard:
    """Seven figures: bytes per token, block size, peak active blocks, concurrency, rejections, TTFT P95, cost.

    Sizes are keyed by cache group. `ttft_p95_seconds` is interpolated, and lies between the low and the high one for
    certain; the high one is unknown where nothing bounds it. Ratio and cost are per request that ended or was
    refused, and per request that ended.
    """

    id: str
    model: str
    bytes_per_token: int | None
    block_size_tokens: dict[str, int] | None
    peak_active_blocks: int | None
    capacity_blocks: int | None
    concurrency: Concurrency
    rejection_ratio: float | None
    rejected: int | None
    ended: int | None
    ttft_p95_seconds: float | None
    ttft_p95_low_seconds: float | None
    ttft_p95_high_seconds: float | None
    cost_per_request: float | None


def scorecard(observation: Observation) -> Scorecard:
    """The seven figures of one observation."""
    counters, pool = observation.totals.counters, observation.pool
    rejected, ended = _total(counters.get("rejections_total")), _total(counters.get("requests_total"))
    ttft = _ttft(observation)
    sizes = {group.name: group.block_size_tokens for group in observation.groups}
    known = {name: size for name, size in sizes.items() if size is not None}
    return Scorecard(
        id=observation.identity.key,
        model=observation.identity.model,
        bytes_per_token=sum_if_known(group.bytes_per_token for group in observation.groups),
        block_size_tokens=known if known and len(known) == len(sizes) else None,
        peak_active_blocks=None if pool is None else pool.peak_active_blocks,
        capacity_blocks=None if pool is None else pool.capacity_blocks,
        concurrency=_concurrency(observation),
        rejection_ratio=rejection_ratio(observation),
        rejected=None if rejected is None else int(rejected),
        ended=None if ended is None else int(ended),
        ttft_p95_seconds=None if ttft is None else ttft.value,
        ttft_p95_low_seconds=None if ttft is None else ttft.low,
        ttft_p95_high_seconds=None if ttft is None else ttft.high,
        cost_per_request=cost_per_request(observation),
    )


def rejection_ratio(observation: Observation) -> float | None:
    """Refused over refused and ended; None before there was either."""
    counters = observation.totals.counters
    rejected, ended = _total(counters.get("rejections_total")), _total(counters.get("requests_total"))
    return None if rejected is None or ended is None else ratio(rejected, rejected + ended)


def ttft_p95_seconds(observation: Observation) -> float | None:
    """P95 of arrival to first token over all classes; None before any first token."""
    ttft = _ttft(observation)
    return None if ttft is None else ttft.value


def cost_per_request(observation: Observation) -> float | None:
    """Cost over ended requests, in the currency of the price; None without a price, and before any has ended."""
    counters = observation.totals.counters
    cost, ended = _total(counters.get("cost_total")), _total(counters.get("requests_total"))
    return None if cost is None or ended is None else ratio(cost, ended)


def ratio(part: float, whole: float) -> float | None:
    """`part` over `whole`; None where there is no whole."""
    return part / whole if whole > 0 else None


def _ttft(observation: Observation) -> Quantile | None:
    ttft = merged(observation.totals.histograms.get("time_to_first_token", {}).values())
    return None if ttft is None else quantile(TTFT_SHARE, ttft)


def _concurrency(observation: Observation) -> Concurrency:
    view = observation.requests
    return Concurrency(
        fits=None if view is None else _fits(view),
        reached=None if view is None else view.peak_running,
        budget_bytes=None if observation.pool is None else observation.pool.budget_bytes,
        reserve=_reserve(observation),
    )


def _fits(view: RequestsView) -> tuple[Fit, ...] | None:
    if view.maximum_concurrency is None:
        return None
    lengths = view.length_tokens or {}
    return tuple(
        Fit(
            percentile=int(labels[0]),
            length_tokens=int(lengths[labels]) if labels in lengths else None,
            requests=requests,
        )
        for labels, requests in view.maximum_concurrency.items()
    )


def _reserve(observation: Observation) -> tuple[ReserveItem, ...]:
    """What the source says is not for requests: beside the pool, within it, and held back at admission."""
    pool = observation.pool
    if pool is None:
        return ()
    pinned = None if pool.pinned_blocks is None else sum(pool.pinned_blocks.values())
    kept = pool.admission_watermark_blocks
    block_bytes = _block_bytes(observation)
    return (
        ReserveItem(name="reserve", bytes=pool.reserve_bytes, blocks=None, subtracted=True),
        *(
            ReserveItem(name=name, bytes=size, blocks=None, subtracted=True, part_of="reserve")
            for name, size in (pool.reserve_parts_bytes or {}).items()
        ),
        ReserveItem(name="admission_watermark", bytes=_times(kept, block_bytes), blocks=kept, subtracted=False),
        ReserveItem(name="pinned", bytes=_times(pinned, block_bytes), blocks=pinned, subtracted=False),
        ReserveItem(
            name="leaked",
            bytes=_times(observation.leaked_blocks, block_bytes),
            blocks=observation.leaked_blocks,
            subtracted=False,
        ),
    )


def _block_bytes(observation: Observation) -> int | None:
    """Bytes of a block where all groups' blocks are alike."""
    sizes = {group.block_bytes for group in observation.groups}
    return sizes.pop() if len(sizes) == 1 else None


def _times(count: int | None, size: int | None) -> int | None:
    return None if count is None or size is None else count * size


def _total(series: Series | None) -> float | None:
    return None if series is None else math.fsum(series.values())
