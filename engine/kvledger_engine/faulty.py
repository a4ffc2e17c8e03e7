"""FaultyPool: the block pool of a drill, in which one thing goes wrong once. What is right is the pool's own.

Each defect is written as what a buggy pool would have done instead: a call is changed before it is made, or its result
after.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I16, I32, U8, U64
from kvledger.words import ReleaseCause
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.ids import Ids, Integers, ids
from kvledger_engine.memory import CacheMemory
from kvledger_engine.pool import NO_GROUP, BlockPool

_FREE, _USED = CONTROL_INDEX["free_count"], CONTROL_INDEX["index_used"]
_CANCELLED = (ReleaseCause.DISCONNECT, ReleaseCause.API)


class FaultyPool(BlockPool):
    """A pool with a fault plan."""

    _heals_nothing = True

    def __init__(self, memory: CacheMemory, faults: FaultPlan) -> None:
        super().__init__(memory)
        self._faults, self._index = faults, memory.ledger.index

    def _strikes(self, kind: FaultKind, blocks: Ids) -> int | None:
        return self._faults.strikes(kind, blocks, self._ledger.now_ns)

    # -- a stale entry --------------------------------------------------------------------------------------------

    def take(self, count: int, owners: U64, tenants: I16, groups: U8 = NO_GROUP) -> Ids:
        """See `BlockPool.take`."""
        before = self._indexed()
        taken = super().take(count, owners, tenants, groups)
        self._leave_stale(taken, before)
        return taken

    def extend(self, slots: I32, tokens_after: I32, *, copies_made: bool = False) -> tuple[int, int, int]:
        """See `BlockPool.extend`."""
        before = self._indexed()
        grown = super().extend(slots, tokens_after, copies_made=copies_made)
        self._leave_stale(self._memory.arrays.scratch[: max(grown[0], 0)].copy(), before)
        return grown

    def _indexed(self) -> tuple[Any, Any]:
        """Slots of the index and keys, by block, as they are now."""
        return self._blocks.index_slot.copy(), self._blocks.prefix_hash.copy()

    def _leave_stale(self, taken: Ids, before: tuple[Any, Any]) -> None:
        """An evicted block's entry stays in the index, if nobody has got its place."""
        slots, keys = before
        evicted = taken[slots[taken] >= 0]
        evicted = evicted[self._index.block[slots[evicted]] < 0]
        stale = self._strikes(FaultKind.STALE_PREFIX_ENTRY, evicted)
        if stale is None:
            return
        block = evicted[stale]
        self._index.key[slots[block]], self._index.block[slots[block]] = keys[block], block
        self._control[_USED] += 1

    # -- references and the free list -----------------------------------------------------------------------------

    def release(self, blocks: Integers) -> float:
        """See `BlockPool.release`."""
        given = self._lose_decrement(ids(blocks).copy())
        top = self.free_blocks
        seconds = super().release(given)
        self._misplace(top)
        self._release_again(ids(blocks))
        return seconds

    def _lose_decrement(self, blocks: Ids) -> Ids:
        shared = np.flatnonzero(self._blocks.ref_count[blocks] >= 2)
        lost = self._strikes(FaultKind.LOST_DECREF, blocks[shared])
        if lost is None:
            return blocks
        self._ledger.stamp(blocks)
        return np.delete(blocks, shared[lost])

    def _misplace(self, top: int) -> None:
        """Of the blocks put on the free list above `top`, one is not, or is twice."""
        freed = self._list[top : self.free_blocks].astype(np.int64)
        if (lost := self._strikes(FaultKind.FREE_LIST_LOSS, freed)) is not None:
            left = np.delete(freed, lost)
            self._list[top : top + len(left)] = left
            self._set_free(top + len(left))
        elif self.free_blocks < len(self._list):
            twice = self._strikes(FaultKind.FREE_LIST_DUPLICATE, freed)
            if twice is not None:
                self._list[self.free_blocks] = freed[twice]
                self._set_free(self.free_blocks + 1)

    def _set_free(self, count: int) -> None:
        self._control[_FREE] = count
        self._values[self._ledger.stats.gauge("free_blocks")] = count

    def _release_again(self, blocks: Ids) -> None:
        """A second release needs room on the free list to show; no block can be in the eviction order twice."""
        unindexed = blocks[self._blocks.index_slot[blocks] < 0]
        if self.free_blocks < len(self._list):
            again = self._strikes(FaultKind.DOUBLE_FREE, unindexed)
            if again is not None:
                super().release(unindexed[again : again + 1])

    def give_back(self, blocks: Ids, cause: ReleaseCause) -> float:
        """See `BlockPool.give_back`."""
        if cause in _CANCELLED and self._strikes(FaultKind.SKIPPED_FREE, blocks) is not None:
            return float(self.clocks(blocks).sum())
        return super().give_back(blocks, cause)
