"""Block-seconds: the integral over time of the blocks charged to each tenant.

Owns the tenants' blocks and block-seconds in the stats, and up to when they have been added up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.stats import Stats

_NS_PER_SECOND = 1_000_000_000
_FEW_TENANTS, _FEW_COLUMNS = 8, 16  # so many are handled faster one by one than as an array


class BlockSeconds:
    """The clock of one ledger's charges, which begins at `now_ns`."""

    def __init__(self, stats: Stats, now_ns: int) -> None:
        self._stats, self._advanced_ns = stats, now_ns
        self._step = np.empty(stats.plan.columns)
        # Indices of the blocks and block-seconds of every tenant column that has ever been charged.
        self._charged: dict[int, tuple[int, int]] = {}
        self._block_seconds = stats.tenant_counter("block_seconds_total")

    def advance(self, now_ns: int) -> None:
        """Add up what has been held until now."""
        elapsed_ns = now_ns - self._advanced_ns
        if elapsed_ns <= 0:
            return
        self._advanced_ns = now_ns
        elapsed = elapsed_ns / _NS_PER_SECOND
        if len(self._charged) > _FEW_TENANTS:
            np.multiply(self._stats.tenant_blocks, elapsed, self._step)
            np.add(self._block_seconds, self._step, self._block_seconds)
            return
        values = self._stats.values
        for blocks, block_seconds in self._charged.values():
            if held := values[blocks]:
                values[block_seconds] += held * elapsed

    def charge(self, columns: NDArray[np.signedinteger[Any]], change: int, now_ns: int) -> None:
        """Charge `change` blocks, 1 or -1, to the tenant of every column given, from `now_ns` on."""
        self.advance(now_ns)
        stats = self._stats
        if len(columns) > _FEW_COLUMNS:
            charged = np.bincount(columns, minlength=len(stats.tenant_blocks))
            stats.tenant_blocks += charged if change > 0 else -charged
            columns = charged.nonzero()[0]
            change = 0
        for column in columns.tolist():
            self._charge(column, change)

    def charge_column(self, column: int, blocks: int, now_ns: int) -> None:
        """Charge that many blocks, fewer if negative, to one tenant from `now_ns` on."""
        self.advance(now_ns)
        self._charge(column, blocks)

    def _charge(self, column: int, blocks: int) -> None:
        stats = self._stats
        first = stats.plan.tenant_blocks
        stats.values[first + column] += blocks
        if column not in self._charged:
            clock = stats.plan.tenant_counters["block_seconds_total", ()]
            self._charged[column] = (first + column, clock + column)
