"""The block pool: who may have which block, and how many references hold it.

The only code that changes a block's reference count, state or place among the free. Its arrays are the ledger's; it
keeps nothing beside them. Every change is stamped first and lies inside a publication of the caller's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.views import F64, I16, I32, U8
from kvledger.words import ReleaseCause
from kvledger_engine.compiled import pool as kernels
from kvledger_engine.compiled import slots as slot_kernels
from kvledger_engine.errors import ArenaFull, NotEnoughBlocks
from kvledger_engine.ids import Ids, Integers, ids
from kvledger_engine.memory import CacheMemory

_FREE, _CACHED = CONTROL_INDEX["free_count"], CONTROL_INDEX["cached_count"]
NO_GROUP: U8 = np.zeros(1, np.uint8)
NO_COLUMN = -1
"""In the place of a tenant column: a block that comes back to life is charged to the one it was charged to."""


class BlockPool:
    """Free, cached and active blocks of one ledger, and the moves between them."""

    def __init__(self, memory: CacheMemory) -> None:
        self._memory, self._ledger, self._handle = memory, memory.ledger, memory.handle
        self._blocks, self._list, self._control = memory.ledger.blocks, memory.ledger.free.list, memory.ledger.control
        stats = self._ledger.stats
        self._values = stats.values
        self._active_gauge, self._failures = stats.gauge("active_blocks"), stats.counter("allocation_failures_total")

    @property
    def free_blocks(self) -> int:
        """Blocks on the free list."""
        return self._control.item(_FREE)

    @property
    def cached_blocks(self) -> int:
        """Blocks in the eviction order."""
        return self._control.item(_CACHED)

    @property
    def active_blocks(self) -> int:
        """Blocks with at least one reference."""
        return int(self._values[self._active_gauge])

    @property
    def available_blocks(self) -> int:
        """Blocks that can be taken now."""
        return self._control.item(_FREE) + self._control.item(_CACHED)

    # -- take -----------------------------------------------------------------------------------------------------

    def check(self, needed: int, reserved: int = 0) -> None:
        """Raise `NotEnoughBlocks`, and count it, unless `needed` blocks besides `reserved` cached ones can be taken."""
        available = self.available_blocks - reserved
        if needed > available:
            self._values[self._failures] += 1
            raise NotEnoughBlocks(needed, available)

    def take(self, count: int, owners: NDArray[np.uint64], tenants: I16, groups: U8 = NO_GROUP) -> Ids:
        """Blocks with one reference each, owned by request serials, charged to tenant columns, for cache groups.

        The three are one for all blocks or one per block, owners and tenants alike. Free blocks first, then cached ones
        in their eviction order, whose content is lost. Raises `NotEnoughBlocks`.
        """
        self.check(count)
        self._ledger.advance_block_seconds()
        taken: Ids = np.empty(count, np.int64)
        kernels.take(self._handle, owners, tenants, groups, taken)
        return taken

    def extend(self, slots: I32, tokens_after: I32, *, copies_made: bool = False) -> tuple[int, int, int]:
        """Take blocks into the tables of slots; see `compiled.slots.grow`.

        Raises `NotEnoughBlocks` or `ArenaFull`, counted, with nothing taken.
        """
        self._ledger.advance_block_seconds()
        found, needed, available = slot_kernels.grow(self._handle, slots, tokens_after, copies_made)
        if found == slot_kernels.NOT_ENOUGH_BLOCKS:
            self._values[self._failures] += 1
            raise NotEnoughBlocks(needed, available)
        if found == slot_kernels.ARENA_FULL:
            self._ledger.overflow()
            raise ArenaFull(needed, available)
        return found, needed, available

    # -- references -----------------------------------------------------------------------------------------------

    def share(self, blocks: Integers, column: int = NO_COLUMN) -> float:
        """One more reference to each block given (twice given, two more); cached ones come back to life.

        A revived block is charged to the tenant column given, or again to the one it was charged to. Returns the
        seconds on the share clocks of the blocks.
        """
        self._ledger.advance_block_seconds()
        seconds, free = kernels.share(self._handle, ids(blocks), column)
        assert not free or self._heals_nothing, "a free block was shared"
        return seconds

    def release(self, blocks: Integers) -> float:
        """Give one reference to each block back. Those left without are cached, evictable in the order given, or free.

        A block given twice loses two references. Returns the seconds on the share clocks of the blocks given.
        """
        self._ledger.advance_block_seconds()
        seconds, unheld = kernels.release(self._handle, ids(blocks))
        assert not unheld or self._heals_nothing, "a reference was released that nobody held"
        return seconds

    def give_back(self, blocks: Ids, cause: ReleaseCause) -> float:
        """As `release`, of what a request held that has no table any more."""
        return self.release(blocks)

    def clocks(self, blocks: Integers) -> F64:
        """Seconds on the share clock of each block now."""
        seconds: F64 = np.empty(len(blocks))
        kernels.read_clocks(self._handle, ids(blocks), seconds)
        return seconds

    _heals_nothing = False
    """Whether references may be wrong, since a defect was switched on."""
