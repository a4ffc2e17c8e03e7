"""Copy-on-write: which shared blocks are about to be written, their replacement, and the copies to be made first.

Owns the pending copies of the present step, the pins that keep their sources, and the lowering of own_from_token;
never copies a byte itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvledger.views import I32
from kvledger.words import PinKind
from kvledger.writer import Ledger
from kvledger_engine.chains import NO_BLOCKS
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.ids import Ids, Integers
from kvledger_engine.pins import PinTable
from kvledger_engine.pool import BlockPool
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows

COPY_LEASE_NS = 60_000_000_000
"""A copy belongs to one step; a source pinned for a minute was forgotten."""


@dataclass(frozen=True, slots=True)
class SharedWrites:
    """Rows (of the slots asked about) whose next token falls before own_from_token, in turn, once for each cache group.

    `slots`, and the table, the position in it and the block of that write, have one entry per row.
    """

    rows: Ids
    slots: Ids
    tables: Integers
    indexes: Integers
    sources: Integers

    def __len__(self) -> int:
        return len(self.rows)


_NONE = SharedWrites(NO_BLOCKS, NO_BLOCKS, NO_BLOCKS, NO_BLOCKS, NO_BLOCKS)


def must_copy(sources: Integers, references: Integers) -> Ids:
    """Positions in `sources` (blocks about to be written, in turn) of those that somebody else still holds by then.

    Each request that copies gives its reference to the source up, so the last holder of a block writes into it.
    """
    earlier = np.tril(sources[:, None] == sources[None, :], -1).sum(axis=1)
    copied: Ids = (references - earlier >= 2).nonzero()[0]
    return copied


class CopyOnWrite:
    """Shared blocks on their way to being somebody's own."""

    def __init__(
        self,
        ledger: Ledger,
        pool: BlockPool,
        tables: BlockTables,
        windows: Windows,
        pins: PinTable,
        faults: FaultPlan | None,
    ) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        self._pool, self._tables, self._windows, self._pins, self._faults = pool, tables, windows, pins, faults
        stats, group = ledger.stats, ledger.limits.groups[0]
        self._size, self._block_bytes = group.block_size_tokens, group.block_bytes
        self._values = stats.values
        self._copies, self._bytes = stats.counter("cow_copies_total"), stats.counter("cow_bytes_total")
        self._clear()

    def _clear(self) -> None:
        self._sources = self._targets = self._entries = np.empty(0, np.int32)
        self.slots: Ids = NO_BLOCKS
        """The requests for which the pending copies are made."""

    # -- before a write -------------------------------------------------------------------------------------------

    def shared_writes(self, slots: Integers, tokens_after: Integers) -> SharedWrites:
        """The writes into shared blocks if each slot grows to its tokens_after."""
        computed = self._slots.computed_tokens[slots]
        rows = ((self._slots.own_from_token[slots] > computed) & (tokens_after > computed)).nonzero()[0]
        if len(rows) == 0:
            return _NONE
        at, indexes = slots[rows].astype(np.intp), computed[rows] // self._size
        if self._windows.plain:
            return SharedWrites(rows, at, at, indexes, self._tables.entries(at, indexes))
        tables = self._windows.tables(at)
        indexes = self._windows.each(indexes) - self._windows.skipped[tables]
        rows, at = self._windows.each(rows), self._windows.each(at)
        return SharedWrites(rows, at, tables, indexes, self._tables.entries(tables, indexes))

    def copied(self, writes: SharedWrites) -> Ids:
        """Which of the writes need a copy."""
        if len(writes) == 0:
            return NO_BLOCKS
        return must_copy(writes.sources, self._blocks.ref_count[writes.sources])

    def made(self, writes: SharedWrites, copied: Ids) -> Ids:
        """Which of the copies needed are made: all of them, but for a fault."""
        if self._faults is None:
            return copied
        missed = self._faults.strikes(FaultKind.MISSING_COPY_ON_WRITE, writes.sources[copied], self._ledger.now_ns)
        return copied if missed is None else np.delete(copied, missed)

    def own(self, writes: SharedWrites, copied: Ids, targets: Ids) -> None:
        """Let the slots write: into `targets` where the shared block is to be copied, else into the block itself."""
        if len(copied):
            self._replace(writes, copied, targets)
        self._slots.changed_seq[writes.slots] = self._ledger.seq_value
        self._slots.own_from_token[writes.slots] = self._slots.computed_tokens[writes.slots]

    def _replace(self, writes: SharedWrites, copied: Ids, targets: Ids) -> None:
        slots, sources = writes.slots[copied], writes.sources[copied]
        self._ledger.stamp(sources)
        # A live request's block-seconds must not jump: what it has had of the source leaves its base, not its sum.
        np.subtract.at(self._slots.share_base, slots, self._pool.clocks(sources))
        self._blocks.filled_tokens[targets] = self._slots.computed_tokens[slots] % self._size
        self._note(sources, targets, slots)
        self._tables.replace(writes.tables[copied], writes.indexes[copied], targets)
        self._pool.release(sources)

    def _note(self, sources: Integers, targets: Ids, slots: Ids) -> None:
        self.moved(sources, targets, slots)
        self._values[self._copies] += len(sources)
        self._values[self._bytes] += len(sources) * self._block_bytes

    def moved(self, sources: Integers, targets: Ids, slots: Ids) -> None:
        """Copies to be made for requests that go on in other blocks: sources stay pinned until they are."""
        holders = self._slots.serial[slots]
        entries = self._pins.add(sources, PinKind.COPY_ON_WRITE, holders, lease_ns=COPY_LEASE_NS)
        self._sources = np.concatenate((self._sources, sources.astype(np.int32)))
        self._targets = np.concatenate((self._targets, targets.astype(np.int32)))
        self._entries = np.concatenate((self._entries, entries))
        self.slots = np.concatenate((self.slots, slots))

    # -- pending copies -------------------------------------------------------------------------------------------

    @property
    def are_pending(self) -> bool:
        """Whether `done` has something to do."""
        return len(self._entries) > 0

    def pending(self) -> tuple[I32, I32]:
        """(sources, targets) of the copies to make now."""
        return self._sources, self._targets

    def origins(self, blocks: Integers) -> Integers:
        """Where the content of each block lies now: of one that waits for its copy, in the source."""
        if len(self._targets) == 0:
            return blocks
        found = blocks.copy()
        rows, pending = (blocks[:, None] == self._targets[None, :]).nonzero()
        found[rows] = self._sources[pending]
        return found

    def forget(self, targets: Integers) -> None:
        """The blocks are given back before anything was copied into them."""
        if len(self._targets) == 0:
            return
        gone = np.isin(self._targets, targets)
        self._pins.drop(self._entries[gone])
        self._sources, self._targets = self._sources[~gone], self._targets[~gone]
        self._entries, self.slots = self._entries[~gone], self.slots[~gone]

    def done(self) -> None:
        """The copies have been made: their sources are no longer needed for it."""
        entries = self._entries
        self._clear()
        self._pins.drop(entries)
