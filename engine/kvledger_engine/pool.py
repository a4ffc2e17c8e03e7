"""The block pool: who may have which block, and how many references hold it.

The only code that changes a block's reference count, state or place among the free. Its arrays are the ledger's; it
keeps nothing beside them. Every change is stamped first and lies inside a publication of the caller's.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.views import F64, I32
from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_engine.errors import NotEnoughBlocks
from kvledger_engine.evict import EvictionOrder, Ids
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.prefix import PrefixIndex
from kvledger_engine.prefixkeys import Integers
from kvledger_engine.reprieves import Reprieves
from kvledger_engine.shareclocks import ShareClocks

_FREE = CONTROL_INDEX["free_count"]


class BlockPool:
    """Free, cached and active blocks of one ledger, and the moves between them. `clocks` split a block's seconds."""

    def __init__(
        self, ledger: Ledger, index: PrefixIndex, faults: FaultPlan | None = None, policy: Reprieves | None = None
    ) -> None:
        self._ledger, self._blocks, self._list, self._control = ledger, ledger.blocks, ledger.free.list, ledger.control
        self._index, self._faults, self._policy, self._order = index, faults, policy, EvictionOrder(ledger, policy)
        self.clocks = ShareClocks(ledger)
        stats = ledger.stats
        self._values = stats.values
        self._free_gauge, self._cached_gauge = stats.gauge("free_blocks"), stats.gauge("cached_blocks")
        self._active_gauge = stats.gauge("active_blocks")
        self._evictions, self._failures = stats.counter("evictions_total"), stats.counter("allocation_failures_total")
        self._seen_at = np.zeros(ledger.limits.capacity_blocks, np.int32)  # scratch of `_distinct`

    @property
    def free_blocks(self) -> int:
        """Blocks on the free list."""
        return int(self._control[_FREE])

    @property
    def cached_blocks(self) -> int:
        """Blocks in the eviction order."""
        return len(self._order)

    @property
    def active_blocks(self) -> int:
        """Blocks with at least one reference."""
        return int(self._values[self._active_gauge])

    @property
    def available_blocks(self) -> int:
        """Blocks that can be taken now."""
        return self.free_blocks + self.cached_blocks

    # -- take -----------------------------------------------------------------------------------------------------

    def check(self, needed: int, reserved: int = 0) -> None:
        """Raise `NotEnoughBlocks`, and count it, unless `needed` blocks besides `reserved` cached ones can be taken."""
        available = self.available_blocks - reserved
        if needed > available:
            self._values[self._failures] += 1
            raise NotEnoughBlocks(needed, available)

    def take(self, owners: NDArray[np.uint64], tenants: NDArray[np.int16], groups: Integers | int = 0) -> I32:
        """One block per owner (request serial), with one reference, charged to its tenant column, for a cache group.

        Free blocks first, then cached ones in their eviction order, whose content is lost. Raises `NotEnoughBlocks`.
        """
        count = len(owners)
        self.check(count)
        blocks = self._pop_free(min(count, self.free_blocks))
        if len(blocks) < count:
            blocks = np.concatenate((blocks, self._evict(count - len(blocks))))
        self._hold(blocks, owners, tenants, groups)
        return blocks.astype(np.int32)

    def _hold(
        self, blocks: Ids, owners: NDArray[np.uint64], tenants: NDArray[np.int16], groups: Integers | int
    ) -> None:
        """Stamped blocks that are in no list any more get their first reference."""
        if self._policy is not None:
            self._policy.allocated(blocks)
        old = self._blocks.ref_count[blocks]
        self._assign(blocks, owners, tenants, groups)
        if old.any():
            tenants = self._reference_again(blocks, old, tenants)
        else:
            self._blocks.ref_count[blocks] = 1
        self._ledger.charge(tenants, 1)
        self._count_active(len(tenants))

    def _pop_free(self, count: int) -> Ids:
        left = self.free_blocks - count
        blocks = self._list[left : left + count][::-1].astype(np.intp)
        self._ledger.stamp(blocks)
        self._control[_FREE] = left
        return blocks

    def _evict(self, count: int) -> Ids:
        blocks = self._order.pop(count)
        self._index.remove(blocks)
        self._values[self._evictions] += count
        return blocks

    def _assign(self, ids: Ids, owners: NDArray[np.uint64], tenants: NDArray[np.int16], groups: Integers | int) -> None:
        blocks, now = self._blocks, self._ledger.now_ns
        blocks.owner[ids], blocks.tenant[ids], blocks.group[ids] = owners, tenants, groups
        blocks.filled_tokens[ids], blocks.allocated_ns[ids] = 0, now
        self.clocks.start(ids)
        blocks.state[ids] = BlockState.ACTIVE

    # -- references -----------------------------------------------------------------------------------------------

    def share(self, blocks: Integers, tenant: int | None = None) -> None:
        """One more reference to each block given (twice given, two more); cached ones come back to life.

        A revived block is charged to the tenant column `tenant`, or again to the one it was charged to.
        """
        ids, times = self._distinct(blocks)
        self._ledger.stamp(ids)
        old = self._blocks.ref_count[ids]
        assert self._faults is not None or (self._blocks.state[ids] != BlockState.FREE).all(), "a free block was shared"
        self.clocks.advance(ids, old)
        self._blocks.ref_count[ids] = old + times
        if self._policy is not None:
            self._policy.used(ids)
        cached = ids[self._blocks.evict_ticket[ids] >= 0]
        if len(cached):
            self._revive(cached, tenant)
        self._count_active(int(np.count_nonzero(old < 1) - np.count_nonzero(old + times < 1)))

    def _revive(self, cached: Ids, tenant: int | None) -> None:
        self._order.remove(cached)
        self._blocks.state[cached] = BlockState.ACTIVE
        if tenant is not None:
            self._blocks.tenant[cached] = tenant
        self._ledger.charge(self._blocks.tenant[cached], 1)

    def release(self, blocks: Integers) -> float:
        """Give one reference to each block back. Those left without are cached, evictable in the order given, or free.

        A block given twice loses two references. Returns the seconds on the share clocks of the blocks given.
        """
        ids, given = self._distinct(blocks)
        times = given if self._faults is None else self._lose_decrement(ids, given)
        clocks = self._drop(ids, times)
        if self._faults is not None:
            self._release_again(ids)
        return float((clocks * given).sum())

    def _drop(self, ids: Ids, times: int | Integers) -> F64:
        """Take so many references from each block; returns the seconds on the share clocks until then."""
        self._ledger.stamp(ids)
        old = self._blocks.ref_count[ids]
        left = old - times
        assert self._faults is not None or left.min(initial=0) >= 0, "a reference was released that nobody held"
        clocks = self.clocks.advance(ids, old)
        self._blocks.ref_count[ids] = left
        if not left.any():
            self._retire(ids, ids)
        elif (ended := left <= 0).any():
            self._retire(ids[ended], ids[ended & (old > 0)])
        return clocks

    def _retire(self, ids: Ids, deactivated: Ids) -> None:
        """Put blocks without references where they can be taken from; `deactivated` had one until now."""
        indexed = self._blocks.index_slot[ids] >= 0
        if self._faults is not None:
            indexed &= self._blocks.evict_ticket[ids] < 0  # cached while held: only a fault can bring that about
        if indexed.any():
            kept, ids = ids[indexed], ids[~indexed]
            self._blocks.state[kept] = BlockState.CACHED
            if self._policy is not None:
                self._policy.cached(kept)
            self._order.append(kept)
        self._blocks.state[ids] = BlockState.FREE
        self._push_free(ids if self._faults is None else self._misplace(ids))
        self._ledger.charge(self._blocks.tenant[deactivated], -1)
        self._count_active(-len(deactivated))

    def _push_free(self, ids: Ids) -> None:
        count = self.free_blocks
        room = len(self._list) - count
        if len(ids) > room:  # only after a fault can more blocks be free than there are
            self._ledger.overflow(len(ids) - room)
            ids = ids[:room]
        self._list[count : count + len(ids)] = ids
        self._control[_FREE] = count + len(ids)

    def _distinct(self, blocks: Integers) -> tuple[Ids, int | Integers]:
        """The blocks once each, in the order in which they were last given, and how often each was given."""
        ids = blocks.astype(np.intp)
        order = np.arange(len(ids), dtype=np.int32)
        self._seen_at[ids] = order
        if (self._seen_at[ids] == order).all():
            return ids, 1
        unique, from_the_end, times = np.unique(ids[::-1], return_index=True, return_counts=True)
        by_last = np.argsort(-from_the_end)
        return unique[by_last], times[by_last].astype(np.int32)

    # -- counts ---------------------------------------------------------------------------------------------------

    def _count_active(self, change: int) -> None:
        values = self._values
        values[self._active_gauge] += change
        values[self._free_gauge] = self.free_blocks
        values[self._cached_gauge] = self.cached_blocks

    # -- drills ---------------------------------------------------------------------------------------------------

    def _reference_again(self, blocks: Ids, old: I32, tenants: NDArray[np.int16]) -> NDArray[np.int16]:
        """Blocks that should have had no reference get one. A count below zero stays short: taking heals no fault.

        Returns the tenants of those that are active now and were not.
        """
        assert self._faults is not None, "a free block had references"
        left = np.minimum(old, 0) + 1
        self._blocks.ref_count[blocks] = left
        return tenants[(old < 1) & (left >= 1)]

    def _lose_decrement(self, ids: Ids, times: int | Integers) -> int | Integers:
        assert self._faults is not None
        shared = np.flatnonzero(self._blocks.ref_count[ids] >= 2)
        lost = self._faults.strikes(FaultKind.LOST_DECREF, ids[shared], self._ledger.now_ns)
        if lost is None:
            return times
        counts = np.broadcast_to(np.asarray(times, np.int32), ids.shape).copy()
        counts[shared[lost]] -= 1
        return counts

    def _misplace(self, free: Ids) -> Ids:
        assert self._faults is not None
        now = self._ledger.now_ns
        if (lost := self._faults.strikes(FaultKind.FREE_LIST_LOSS, free, now)) is not None:
            return np.delete(free, lost)
        room = self.free_blocks + len(free) < len(self._list)
        if room and (twice := self._faults.strikes(FaultKind.FREE_LIST_DUPLICATE, free, now)) is not None:
            return np.append(free, free[twice])
        return free

    def _release_again(self, ids: Ids) -> None:
        """A second release needs room on the free list to show; no block can be in the eviction order twice."""
        assert self._faults is not None
        unindexed = ids[self._blocks.index_slot[ids] < 0]
        if self.free_blocks < len(self._list):
            again = self._faults.strikes(FaultKind.DOUBLE_FREE, unindexed, self._ledger.now_ns)
            if again is not None:
                self._drop(unindexed[again : again + 1], 1)
