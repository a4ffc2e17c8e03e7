"""Block tables: which blocks a request's tokens lie in, in order, as chains of fixed chunks in the ledger's arena.

Owns `arena.*` and the slots' `table_blocks`, `first_chunk` and `last_chunk`; counts no references. Table t is that of
slot t // groups in group t % groups: of a slot, where there is one group. A table entry is changed only after its block
and its slot were stamped.
"""

from __future__ import annotations

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32
from kvledger_engine.compiled import tables as kernels
from kvledger_engine.errors import ArenaFull
from kvledger_engine.ids import Ids, Integers, ids
from kvledger_engine.memory import CacheMemory

_FREE_CHUNKS = CONTROL_INDEX["free_chunk_count"]
_ROOM = 1024


class BlockTables:
    """All tables, by number. Blocks named in calls that change a table must be stamped already."""

    def __init__(self, memory: CacheMemory) -> None:
        self._ledger, self._control, self._handle = memory.ledger, memory.ledger.control, memory.handle
        self._length = memory.arrays.table_blocks

    # -- read -----------------------------------------------------------------------------------------------------

    def lengths(self, tables: Integers) -> I32:
        """Blocks in each table."""
        return self._length[tables]

    def length(self, table: int) -> int:
        """Blocks in one table."""
        return self._length.item(table)

    def gather(self, tables: Integers) -> tuple[I32, I32]:
        """Tables in the order given as (blocks, offsets): table i is blocks[offsets[i]:offsets[i + 1]]."""
        offsets: I32 = np.empty(len(tables) + 1, np.int32)
        blocks: I32 = np.empty(int(self._length[tables].sum()), np.int32)
        kernels.gather(self._handle, ids(tables), blocks, offsets)
        return blocks, offsets

    def blocks_of(self, table: int) -> I32:
        """One table."""
        return self.gather(np.array([table]))[0]

    def entries(self, tables: Integers, indexes: Integers) -> Ids:
        """Block at position `indexes` of each table."""
        found: Ids = np.empty(len(tables), np.int64)
        kernels.entries(self._handle, ids(tables), ids(indexes), found)
        return found

    # -- change ---------------------------------------------------------------------------------------------------

    def check(self, tables: Integers, counts: Integers) -> None:
        """Raises `ArenaFull`, counted as an overflow, unless each table can grow by its count."""
        needed, available = kernels.room(self._handle, ids(tables), ids(counts)), self._control.item(_FREE_CHUNKS)
        if needed > available:
            self._ledger.overflow()
            raise ArenaFull(needed, available)

    def append(self, tables: Integers, counts: Integers, blocks: Integers) -> None:
        """Lengthen distinct tables: the first counts[0] of `blocks` go to tables[0], and so on; see `check`."""
        kernels.append(self._handle, ids(tables), ids(counts), ids(blocks))

    def replace(self, tables: Integers, indexes: Integers, blocks: Integers) -> None:
        """Put other blocks at position `indexes` of each table."""
        kernels.replace(self._handle, ids(tables), ids(indexes), ids(blocks))

    def drop(self, tables: Integers, counts: Integers, after: Integers | int = 0) -> None:
        """Shorten distinct tables by the `counts` entries that follow their first `after`; what comes then moves up.

        Something is left of each. All blocks of these tables must be stamped: for whoever reads now, each of them
        changes its place.
        """
        kernels.drop(
            self._handle, ids(tables), ids(counts), np.array(np.broadcast_to(after, np.shape(tables)), np.int64)
        )

    def clear(self, table: int) -> None:
        """Empty a table and give its chunks back."""
        kernels.empty(self._handle, table)
