"""Holdings: blocks on their way into the tables of slots. Takes them, puts them in, and notes what a slot came to hold.

Owns the slots' `peak_blocks` and `first_block_ns`; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvledger.views import I32
from kvledger_engine.chains import NO_BLOCKS
from kvledger_engine.compiled import slots as kernels
from kvledger_engine.ids import Ids, Integers, ids
from kvledger_engine.memory import CacheMemory
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.windows import Windows


class Holdings:
    """What the slots of one ledger come to hold. `on_take` is told of blocks whose content is lost from now on."""

    def __init__(self, memory: CacheMemory, *, pool: BlockPool, windows: Windows, metering: Metering) -> None:
        self._slots, self._handle, self._scratch = memory.ledger.slots, memory.handle, memory.arrays.scratch
        self._pool, self._windows, self._metering = pool, windows, metering
        self.on_take: Callable[[Ids], None] | None = None

    def take(self, count: int, slots: Integers, groups: Integers) -> Ids:
        """Blocks for the requests in `slots` and their tables in `groups`: one for all blocks, or one per block."""
        if count == 0:
            return NO_BLOCKS
        began_ns = self._metering.now_ns()
        owners, tenants = self._slots.serial[slots], self._slots.tenant[slots]
        blocks = self._pool.take(count, owners, tenants, groups.astype(np.uint8))
        self._metering.allocated(began_ns)
        if self.on_take is not None:
            self.on_take(blocks)
        return blocks

    def extend(self, slots: I32, tokens_after: I32, *, copies_made: bool = False) -> tuple[int, int, int]:
        """As `BlockPool.extend`, for slots that run."""
        began_ns = self._metering.now_ns()
        found, begun, chunks = self._pool.extend(slots, tokens_after, copies_made=copies_made)
        if found > 0:
            self._metering.allocated(began_ns)
            if self.on_take is not None:
                self.on_take(self._scratch[:found])
            if begun:
                self._metering.first_blocks(self._scratch[found : found + begun])
        return found, begun, chunks

    def attach(self, slots: Integers, counts: Integers, blocks: Integers) -> None:
        """Put blocks at the ends of the tables of distinct slots, counts[i] in the i-th table of theirs.

        There must be room, see `BlockTables.check`.
        """
        if len(blocks) == 0:
            return
        begun = kernels.attach(self._handle, ids(slots), ids(counts), ids(blocks))
        if begun:
            self._metering.first_blocks(self._scratch[:begun])
