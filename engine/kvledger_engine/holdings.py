"""Holdings: blocks on their way into the tables of slots. Takes them, puts them in, and notes what a slot came to hold.

Owns the slots' `peak_blocks` and `first_block_ns`; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvledger.writer import Ledger
from kvledger_engine.chains import NO_BLOCKS
from kvledger_engine.evict import Ids
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.prefixkeys import Integers
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows


class Holdings:
    """What the slots of one ledger come to hold. `on_take` is told of blocks whose content is lost from now on."""

    def __init__(
        self, ledger: Ledger, *, pool: BlockPool, tables: BlockTables, windows: Windows, metering: Metering
    ) -> None:
        self._slots, self._pool, self._tables = ledger.slots, pool, tables
        self._windows, self._metering = windows, metering
        self.on_take: Callable[[Ids], None] | None = None

    def take(self, slots: Ids, tables: Integers) -> Ids:
        """One block for the request in each of `slots`, to be put into one of its tables."""
        if len(slots) == 0:
            return NO_BLOCKS
        began_ns = self._metering.now_ns()
        groups = 0 if self._windows.plain else tables % self._windows.count
        blocks = self._pool.take(self._slots.serial[slots], self._slots.tenant[slots], groups).astype(np.intp)
        self._metering.allocated(began_ns)
        if self.on_take is not None:
            self.on_take(blocks)
        return blocks

    def attach(self, slots: Ids, tables: Integers, counts: Integers, blocks: Integers, room: Integers) -> None:
        """Put blocks at the ends of the tables of distinct slots, as `BlockTables.append` does."""
        if len(blocks) == 0:
            return
        self._tables.append(tables, counts, blocks, room)
        peaks, held = self._slots.peak_blocks, self._tables.lengths(tables)
        before = peaks[slots]
        if not self._windows.plain:
            held = held.reshape(len(slots), -1).sum(axis=1, dtype=np.int32)
        peaks[slots] = np.maximum(before, held)
        if np.count_nonzero(before) < len(before):
            self._metering.first_blocks(slots[before == 0])
