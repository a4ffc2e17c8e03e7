"""Commits: what becomes of a slot's blocks once keys and values of further tokens are stored in them.

Owns the slots' computed_tokens as it rises. Full blocks enter the prefix index, and what has left a window is given
back.
"""

from __future__ import annotations

import numpy as np

from kvledger.writer import Ledger
from kvledger_engine.accounts import Price
from kvledger_engine.chains import PrefixChains, TokenStore
from kvledger_engine.evict import Ids
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.prefixkeys import U64, Integers
from kvledger_engine.reprieves import Reprieves
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows


class Commits:
    """Tokens stored in the blocks of one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        pool: BlockPool,
        tables: BlockTables,
        windows: Windows,
        chains: PrefixChains,
        metering: Metering,
        policy: Reprieves | None,
    ) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        self._size = ledger.limits.groups[0].block_size_tokens
        self._pool, self._tables, self._windows = pool, tables, windows
        self._chains, self._metering, self._policy = chains, metering, policy

    def commit(self, slots: Integers, computed_tokens: Integers, tokens: TokenStore, salts: U64) -> None:
        """The keys and values of the first `computed_tokens` tokens of each distinct slot are stored now.

        Blocks that became full enter the prefix index under the slots' `salts`; what is indexed may be shared, so it
        lies before own_from_token. Blocks that have left a window are given back.
        """
        slots, after = slots.astype(np.intp), computed_tokens.astype(np.intp)
        first = self._slots.computed_tokens[slots].astype(np.intp) // self._size
        counts = (after - 1) // self._size - first + 1
        rows = np.arange(len(slots)).repeat(counts)
        indexes = first[rows] + np.arange(len(rows)) - (counts.cumsum() - counts)[rows]
        at = slots[rows]
        blocks = self._entries(at, indexes)
        held = np.minimum(after[rows] - indexes * self._size, self._size)
        self._ledger.stamp(blocks.reshape(-1))
        self._blocks.filled_tokens[blocks.reshape(-1)] = self._windows.each(held)
        self._slots.computed_tokens[slots] = after
        full = (held == self._size).nonzero()[0]
        if len(full):
            began_ns = self._metering.now_ns()
            if self._policy is not None:
                self._policy.filled(blocks[full].reshape(-1), self._windows.each(indexes[full]))
            at, indexes = at[full], indexes[full]
            indexed = self._chains.publish(at, indexes, blocks[full], tokens, salts[rows[full]])
            self._disown(at[indexed], (indexes[indexed] + 1) * self._size)
            self._metering.shared(began_ns, Price.INDEX, at)
        if self._windows.slide:
            self._recycle(slots)

    def _entries(self, slots: Ids, indexes: Integers) -> Ids:
        """Block number `indexes` of each slot's sequence: [n], or [n, groups] where there are several."""
        if self._windows.plain:
            return self._tables.entries(slots, indexes).astype(np.intp)
        tables = self._windows.tables(slots)
        entries = self._tables.entries(tables, self._windows.each(indexes) - self._windows.skipped[tables])
        return entries.reshape(-1, self._windows.count).astype(np.intp)

    def _recycle(self, slots: Ids) -> None:
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
        np.add.at(self._slots.block_seconds, holders, self._pool.clocks.read(gone))
        self._pool.release(gone)

    def _disown(self, slots: Ids, ends: Integers) -> None:
        """What lies before token `ends` may be shared from now on; each slot's rows rise."""
        self._slots.changed_seq[slots] = self._ledger.seq_value
        self._slots.own_from_token[slots] = np.maximum(self._slots.own_from_token[slots], ends)
