"""Commits: what becomes of a slot's blocks once keys and values of further tokens are stored in them.

Owns the slots' computed_tokens as it rises. Full blocks enter the prefix index, and what has left a window is given
back.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32, U64
from kvledger_engine.accounts import Price
from kvledger_engine.chains import PrefixChains
from kvledger_engine.compiled import slots as kernels
from kvledger_engine.ids import Integers
from kvledger_engine.memory import CacheMemory
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows


class Commits:
    """Tokens stored in the blocks of one ledger."""

    def __init__(
        self,
        memory: CacheMemory,
        *,
        pool: BlockPool,
        tables: BlockTables,
        windows: Windows,
        chains: PrefixChains,
        metering: Metering,
    ) -> None:
        self._ledger, self._slots = memory.ledger, memory.ledger.slots
        self._pool, self._tables, self._windows = pool, tables, windows
        self._chains, self._metering = chains, metering
        self._handle, self._scratch, self._row = memory.handle, memory.arrays.scratch, 2 + windows.count

    def commit(self, slots: Integers, computed_tokens: Integers, tokens: I32, salts: U64) -> None:
        """The keys and values of the first `computed_tokens` tokens of each distinct slot are stored now.

        Blocks that became full enter the prefix index; what is indexed may be shared, so it lies before own_from_token.
        `tokens` I32[slots, length] and `salts` U64[slots] are those of all slots. Blocks that have left a window are
        given back.
        """
        at: I32 = np.ascontiguousarray(slots, np.int32)
        full = kernels.commit(self._handle, at, np.ascontiguousarray(computed_tokens, np.int32))
        if full:
            began_ns = self._metering.now_ns()
            rows = self._scratch[: full * self._row].reshape(full, self._row)
            self._chains.publish(rows, tokens, salts)
            self._metering.shared(began_ns, Price.INDEX, rows[:, 0])
        if self._windows.slide:
            self._recycle(at)

    def _recycle(self, slots: Integers) -> None:
        """Give back what has left the windows of the slots: full blocks, cached if they are indexed, oldest first."""
        tables, skipped = self._windows.tables(slots), self._windows.skipped
        outside = self._windows.outside(self._slots.computed_tokens[slots]).reshape(-1)
        sliding = (outside > skipped[tables]).nonzero()[0]
        if len(sliding) == 0:
            return
        tables, outside = tables[sliding], outside[sliding]
        counts, sinks = outside - skipped[tables], self._windows.sink_blocks[tables % self._windows.count]
        blocks, offsets = self._tables.gather(tables)
        self._ledger.stamp(blocks.astype(np.intp))
        rows = np.arange(len(tables)).repeat(counts)
        first = offsets[:-1] + sinks - (counts.cumsum() - counts)
        gone = blocks[first[rows] + np.arange(len(rows))].astype(np.intp)
        holders = tables[rows] // self._windows.count
        self._metering.recycled(holders, gone)
        self._tables.drop(tables, counts, sinks)
        skipped[tables] = outside
        np.add.at(self._slots.block_seconds, holders, self._pool.clocks(gone))
        self._pool.release(gone)
