"""How often block tables name each block, kept from audit to audit: only chunks that changed are counted again.

Owns a copy of the chunks as they were counted. The count is always that of the tables just read, however they changed.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32, I64

MANY_TIMES = -1


class TableReferences:
    """The counts of one ledger, int32[capacity]."""

    def __init__(self, capacity: int, chunks: int, width: int) -> None:
        # One more, for entries that name no block.
        self._counts: I32 = np.zeros(capacity + 1, np.int32)
        self._arena: I32 = np.zeros((chunks, width), np.int32)
        self._uses: I32 = np.zeros(chunks, np.int32)
        self._chain: I64 = np.empty(0, np.int64)
        self._used: I64 = np.empty(0, np.int64)

    @property
    def counts(self) -> I32:
        """Entries naming each block, int32[capacity]; good until the next `update`."""
        return self._counts[:-1]

    @property
    def outside(self) -> int:
        """Entries that name no block."""
        return int(self._counts[-1])

    def update(self, arena: I32, chain: I64, used: I64) -> None:
        """Count the first `used[i]` entries of chunk `chain[i]`, for all i; `arena` holds the chunks up to the last.

        A chunk that several tables use (which only damage can bring about) is counted again every time.
        """
        written = self._written(arena)
        uses = np.zeros_like(self._uses)
        uses[chain] = used
        uses[np.bincount(chain, minlength=len(uses)) > 1] = MANY_TIMES
        changed = (uses != self._uses) | (uses == MANY_TIMES)
        changed[written] = True
        gone, come = changed[self._chain], changed[chain]
        np.subtract.at(self._counts, self._named(self._chain[gone], self._used[gone]), np.int32(1))
        self._arena[written] = arena[written]
        np.add.at(self._counts, self._named(chain[come], used[come]), np.int32(1))
        self._uses, self._chain, self._used = uses, chain, used

    def _written(self, arena: I32) -> I64:
        """Chunks with another entry than when they were counted."""
        written: I64 = np.flatnonzero((arena != self._arena[: len(arena)]).any(axis=1))
        return written

    def _named(self, chain: I64, used: I64) -> I64:
        """The blocks that the used entries of some chunks name; the capacity for those that name none."""
        rows = self._arena[chain]
        # `ufunc.at` takes its quick way with indices of the machine's width only.
        named: I64 = rows[np.arange(rows.shape[1]) < used[:, None]].astype(np.int64)
        capacity = len(self._counts) - 1
        named[(named < 0) | (named >= capacity)] = capacity
        return named
