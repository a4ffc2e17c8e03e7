"""Lengths of ended requests, and how many requests of such a length a pool holds at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger import geometry
from kvledger.limits import Limits
from kvledger_agent.needs import I64, blocks_of, blocks_of_group
from kvledger_agent.observation import Labels, Series

PERCENTILES = (50, 95, 99)
_NO_QUOTAS: Mapping[str, int] = {}
MIN_REQUESTS = 20
"""Below this many ended requests percentiles say nothing, and are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthView:
    """Length percentiles of all ended requests, in tokens, and how many requests of that length fit at once.

    `by_tenant` is the latter for each tenant's own lengths. All are keyed by percentile, `by_tenant` by tenant, too.
    """

    tokens: Series | None = None
    maximum_concurrency: Series | None = None
    by_tenant: Series | None = None


def length_view(
    limits: Limits, summaries: NDArray[Any] | None, tenants: tuple[str, ...], quotas: Mapping[str, int] = _NO_QUOTAS
) -> LengthView:
    """What the summaries of ended requests say; unknown below `MIN_REQUESTS` of them.

    `quotas` are the blocks that tenants with a quota may hold.
    """
    held = _held(summaries)
    if held is None or len(held) < MIN_REQUESTS:
        return LengthView()
    lengths = _percentiles(_tokens(held))
    return LengthView(
        tokens={(str(p),): float(length) for p, length in zip(PERCENTILES, lengths.tolist(), strict=True)},
        maximum_concurrency={(str(p),): fit for p, fit in zip(PERCENTILES, _fitting(limits, lengths), strict=True)},
        by_tenant=effective_concurrency(limits, summaries, tenants, quotas),
    )


def effective_concurrency(
    limits: Limits, summaries: NDArray[Any] | None, tenants: tuple[str, ...], quotas: Mapping[str, int] = _NO_QUOTAS
) -> Series | None:
    """Requests of each tenant's length percentiles that it can hold at once; None while no lengths are known.

    It is `geometry.effective_concurrency` at each length, block rounding and windows counted; and of a tenant with a
    quota no more than its quota holds: quota ÷ blocks of a request. Lengths are prompt plus generated tokens of ended
    requests that held a block.
    """
    held = _held(summaries)
    if held is None:
        return None
    tokens = _tokens(held)
    columns = np.where((held["tenant"] < 0) | (held["tenant"] >= len(tenants) - 1), len(tenants) - 1, held["tenant"])
    known: dict[Labels, float] = {}
    for column in np.unique(columns).tolist():
        own = tokens[columns == column]
        if len(own) < MIN_REQUESTS:
            continue
        lengths = _percentiles(own)
        fits = _within(limits, lengths, _fitting(limits, lengths), quotas.get(tenants[column]))
        known |= {(str(percentile), tenants[column]): fit for percentile, fit in zip(PERCENTILES, fits, strict=True)}
    return known or None


def _within(limits: Limits, lengths: I64, fits: list[float], quota_blocks: int | None) -> list[float]:
    """How many fit where no more than `quota_blocks` may be held; None = there is no quota."""
    if quota_blocks is None:
        return fits
    needed = blocks_of(limits, lengths).tolist()
    return [min(fit, quota_blocks / max(1, blocks)) for fit, blocks in zip(fits, needed, strict=True)]


def _held(summaries: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if summaries is None else summaries[summaries["first_block_ns"] > 0]


def _tokens(held: NDArray[Any]) -> I64:
    tokens: I64 = np.maximum(held["prompt_tokens"].astype(np.int64) + held["output_tokens"], 1)
    return tokens


def _percentiles(tokens: I64) -> I64:
    lengths: I64 = np.percentile(tokens, PERCENTILES, method="higher").astype(np.int64)
    return lengths


def _fitting(limits: Limits, lengths: I64) -> list[float]:
    """`geometry.effective_concurrency` at each length, whose bytes per token are those of the whole blocks it takes.

    Where the ledger lacks bytes, memory is counted in blocks: the pool is what is left after the reserve.
    """
    groups, budget, reserve = limits.groups, limits.budget_bytes, limits.reserve_bytes
    if 0 < reserve < budget and all(group.block_bytes for group in groups):
        held = np.sum([blocks_of_group(group, lengths) * group.block_bytes for group in groups], axis=0)
    else:
        held, budget, reserve = blocks_of(limits, lengths), limits.capacity_blocks, 0
    return [
        geometry.effective_concurrency(
            budget_bytes=budget, reserve_bytes=reserve, bytes_per_token=max(1, size) / length, context_tokens=length
        )
        for size, length in zip(held.tolist(), lengths.tolist(), strict=True)
    ]
