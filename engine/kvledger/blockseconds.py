"""Block-seconds: the integral over time of the blocks charged to each tenant.

Owns the tenants' blocks and block-seconds in the stats, and up to when they have been added up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import NS_PER_SECOND
from kvledger.stats import Stats

_FEW_TENANTS = 8  # so many are handled faster one by one than as an array


class BlockSeconds:
    """The clock of one ledger's charges, which begins at `now_ns`.

    `charged` U8[columns] is 1 for every tenant column that was ever charged: set by whoever charges one.
    """

    def __init__(self, stats: Stats, now_ns: int) -> None:
        self._stats, self._values, self._advanced_ns = stats, stats.values, now_ns
        self._step = np.empty(stats.plan.columns)
        self._block_seconds = stats.tenant_counter("block_seconds_total")
        self.charged: NDArray[np.uint8] = np.zeros(stats.plan.columns, np.uint8)
        self._marks = self.charged.data
        self._known = self._marks.tobytes()
        # Indices of the blocks and block-seconds of every column that is known to be charged.
        self._indices: list[tuple[int, int]] = []
        self._are_many = False

    def advance(self, now_ns: int) -> None:
        """Add up what has been held until now."""
        elapsed_ns = now_ns - self._advanced_ns
        if elapsed_ns <= 0:
            return
        self._advanced_ns = now_ns
        elapsed = elapsed_ns / NS_PER_SECOND
        if (marks := self._marks.tobytes()) != self._known:
            self._learn(marks)
        if self._are_many:
            np.multiply(self._stats.tenant_blocks, elapsed, self._step)
            np.add(self._block_seconds, self._step, self._block_seconds)
            return
        values = self._values
        for blocks, block_seconds in self._indices:
            if held := values[blocks]:
                values[block_seconds] += held * elapsed

    def _learn(self, marks: bytes) -> None:
        blocks, clock = self._stats.plan.tenant_blocks, self._stats.plan.tenant_counters["block_seconds_total", ()]
        self._known = marks
        self._indices = [(blocks + column, clock + column) for column, charged in enumerate(marks) if charged]
        self._are_many = len(self._indices) > _FEW_TENANTS

    def charge_column(self, column: int, blocks: int, now_ns: int) -> None:
        """Charge that many blocks, fewer if negative, to one tenant from `now_ns` on."""
        self.advance(now_ns)
        self._stats.values[self._stats.plan.tenant_blocks + column] += blocks
        self._marks[column] = 1

    def charge_since(self, columns: NDArray[np.signedinteger[Any]], since_ns: NDArray[np.int64], now_ns: int) -> None:
        """Charge a block to each of `columns` that it has held since a time of its own, not after `now_ns`."""
        self.advance(now_ns)
        width = len(self._block_seconds)
        self._stats.tenant_blocks += np.bincount(columns, minlength=width)
        held = (now_ns - since_ns) / NS_PER_SECOND
        self._block_seconds += np.bincount(columns, weights=held, minlength=width)
        self.charged[columns] = 1
