"""The mirror of vLLM's block pool: what each touched block says of itself, copied into the ledger.

Reference counts are copied from the blocks after every entry point, never derived from what was asked for. A block is
free or cached when it says that it is in the free queue. Ledger block i is vLLM's block i + 1: the null block, 0, is
not counted. Owns `block.ref_count`, `block.state`, the lists, and the counts of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_vllm.evictable import Evictable
from kvledger_vllm.freelist import FreeList, Ids
from kvledger_vllm.shareclocks import ShareClocks

Mask = NDArray[np.bool_]
_CACHED, _ACTIVE = np.uint8(BlockState.CACHED), np.uint8(BlockState.ACTIVE)


@dataclass(frozen=True, slots=True)
class Change:
    """What touched blocks say now, one row per block. `fresh` blocks were allocated since the last publication."""

    ids: Ids
    references: NDArray[np.int32]
    listed: Mask
    hashed: Mask
    fresh: Mask
    moved: Ids

    def __len__(self) -> int:
        return len(self.ids)


class Mirror:
    """The ledger's blocks as copies of `pool.blocks`; `pool` is the engine's BlockPool."""

    def __init__(self, ledger: Ledger, pool: Any) -> None:
        self._ledger, self._pool, self._blocks = ledger, pool, ledger.blocks
        self._free, self._evictable, self.clocks = FreeList(ledger), Evictable(ledger), ShareClocks(ledger)
        stats = ledger.stats
        self._values = stats.values
        self._free_gauge, self._cached_gauge = stats.gauge("free_blocks"), stats.gauge("cached_blocks")
        self._active_gauge = stats.gauge("active_blocks")
        self._queue = pool.free_block_queue
        self._is_fresh = np.zeros(ledger.limits.capacity_blocks, np.bool_)
        self.begun: Mask = np.zeros(ledger.limits.capacity_blocks, np.bool_)
        """Blocks that became active in this publication: whose table they are in pays for them."""

    def cached(self) -> list[Any]:
        """The blocks of the engine that the ledger calls cached."""
        ids = np.flatnonzero(self._blocks.state == int(BlockState.CACHED))
        return [self._pool.blocks[i + 1] for i in ids.tolist()]

    def look(self, touched: list[Any], fresh: list[Any]) -> Change:
        """Read what touched and newly allocated blocks say of themselves. Changes nothing."""
        pool = self._pool
        unique = {
            block.block_id: block for block in chain(touched, fresh) if getattr(block, "pool", pool) in (pool, None)
        }
        unique.pop(0, None)
        ids = np.array(list(unique), np.intp) - 1
        blocks = unique.values()
        references = np.array([block.ref_cnt for block in blocks], np.int32)
        listed = np.array([block.next_free_block is not None for block in blocks], np.bool_)
        hashed = np.array([block.block_hash is not None for block in blocks], np.bool_)
        new = [block.block_id - 1 for block in fresh if block.block_id in unique]
        self._is_fresh[new] = True
        mask = self._is_fresh[ids]
        self._is_fresh[new] = False
        leaving = ids[self._free.has(ids) & ~(listed & ((references > 0) | ~hashed))]
        return Change(ids, references, listed, hashed, mask, self._free.moved_by_removal(leaving))

    def begin(self, change: Change) -> None:
        """Before tables change: bring clocks up to now, and end the charge of blocks that lose their last holder."""
        ids, old = change.ids, self._blocks.ref_count[change.ids]
        self.clocks.advance(ids)
        ended = (old > 0) & (change.fresh | (change.references < 1))
        if ended.any():
            self._ledger.charge(self._blocks.tenant[ids[ended]], -1)
        self.begun[ids[(change.references > 0) & (change.fresh | (old < 1))]] = True

    def allocate(self, change: Change) -> None:
        """After released tables were read: what was allocated anew begins at 0, owned by nobody yet."""
        fresh = change.ids[change.fresh]
        if not len(fresh):
            return
        blocks = self._blocks
        self.clocks.start(fresh)
        blocks.allocated_ns[fresh] = self._ledger.now_value
        blocks.owner[fresh] = blocks.filled_tokens[fresh] = 0

    def end(self, change: Change) -> None:
        """After tables changed: counts, states, lists, charges and gauges."""
        ids, blocks = change.ids, self._blocks
        if len(ids):
            held = change.references > 0
            cached = ~held & change.listed & change.hashed
            active = int(np.count_nonzero(held)) - int(np.count_nonzero(blocks.ref_count[ids] > 0))
            blocks.ref_count[ids] = change.references
            blocks.state[ids] = held * _ACTIVE + cached * _CACHED
            self._relist(change, cached)
            begun = ids[self.begun[ids]]
            self.begun[begun] = False
            if len(begun):
                self._ledger.charge(blocks.tenant[begun], 1)
            self._values[self._active_gauge] += active
        self.count()

    def count(self) -> None:
        """The gauges of blocks without a reference."""
        cached_count = len(self._evictable)
        self._values[self._cached_gauge] = cached_count
        # The engine's own count of its free queue, so that a count that went wrong there shows as a violation here.
        self._values[self._free_gauge] = self._queue.num_free_blocks - cached_count

    def take(self, blocks: list[int]) -> None:
        """Take blocks, stamped already, from the lists of those without a reference, one by one; with their gauges."""
        if others := self._free.take(blocks):
            self._evictable.take(others)
        self.count()

    def _relist(self, change: Change, cached: Mask) -> None:
        ids = change.ids
        was_cached = self._evictable.has(ids)
        self._evictable.remove(ids[was_cached & ~cached])
        was_free, free = self._free.has(ids), change.listed & ~cached
        self._free.remove(ids[was_free & ~free], change.moved)
        self._evictable.add(ids[cached & ~was_cached])
        self._free.add(ids[free & ~was_free])
