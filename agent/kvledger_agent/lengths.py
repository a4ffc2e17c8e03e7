"""Lengths of ended requests per tenant, and how many requests of such a length a pool holds at once. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.limits import Limits
from kvledger_agent.needs import blocks_of
from kvledger_agent.observation import Labels, Series

PERCENTILES = (50, 95, 99)
MIN_REQUESTS = 20
"""Below this many ended requests a tenant's percentiles say nothing, and are left out."""


def effective_concurrency(limits: Limits, summaries: NDArray[Any] | None, tenants: tuple[str, ...]) -> Series | None:
    """Requests of each tenant's length percentiles that the pool can hold at once; None while no lengths are known.

    The pool's blocks are what is left of the KV budget after its reserve, already divided by bytes per block; a request
    of L tokens takes whole blocks in every cache group. So this is (budget − reserve) / (bytes per token × L), block
    rounding and windows counted. Lengths are prompt plus generated tokens of ended requests that held a block.
    """
    if summaries is None:
        return None
    held = summaries[summaries["first_block_ns"] > 0]
    tokens = np.maximum(held["prompt_tokens"].astype(np.int64) + held["output_tokens"], 1)
    columns = np.where((held["tenant"] < 0) | (held["tenant"] >= len(tenants) - 1), len(tenants) - 1, held["tenant"])
    known: dict[Labels, float] = {}
    for column in np.unique(columns).tolist():
        own = tokens[columns == column]
        if len(own) < MIN_REQUESTS:
            continue
        lengths = np.percentile(own, PERCENTILES, method="higher").astype(np.int64)
        for percentile, blocks in zip(PERCENTILES, blocks_of(limits, lengths).tolist(), strict=True):
            known[str(percentile), tenants[column]] = limits.capacity_blocks / max(1, blocks)
    return known or None
