"""The eviction order and the lives of blocks, moved by the pieces that the pool's kernels are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_engine.compiled import evict, lives
from kvledger_engine.compiled.arrays import POLICY, unpack
from kvledger_engine.compiled.kernel import aside
from kvledger_engine.evict import Eviction
from kvledger_engine.memory import CacheMemory

_HEAD, _TAIL, _COUNT = (CONTROL_INDEX[name] for name in ("evict_head", "evict_tail", "cached_count"))


@aside
def _append(handle: Any, blocks: Any) -> None:
    arrays = unpack(handle)
    for block in blocks:
        evict.append(
            arrays.control,
            arrays.ring,
            arrays.evict_ticket,
            arrays.changed_seq,
            arrays.seq[0],
            arrays.scratch,
            block,
        )


@aside
def _remove(handle: Any, blocks: Any) -> None:
    arrays = unpack(handle)
    for block in blocks:
        evict.remove(arrays.control, arrays.evict_ticket, block)


@aside
def _draw(handle: Any, popped: Any) -> None:
    evict.draw(unpack(handle), popped, 0)


@aside
def _live(handle: Any, what: int, block: int, depth: int) -> bool:
    """What becomes of a block's lives: 0 a use, 1 it fills, 2 it is cached, 3 its turn has come."""
    arrays = unpack(handle)
    policy = arrays.settings[POLICY]
    if what == 0:
        lives.used(policy, arrays.lives, block)
    elif what == 1:
        lives.filled(policy, arrays.whole_lives, block, depth)
    elif what == 2:
        lives.cached(policy, arrays.lives, arrays.whole_lives, block)
    else:
        return lives.spent(policy, arrays.lives, block)
    return False


class Order:
    """The eviction order of a ledger's cache, and the lives of its blocks."""

    def __init__(self, ledger: Ledger, eviction: Eviction = Eviction.LRU) -> None:
        self._memory, self._ledger = CacheMemory(ledger, eviction=eviction), ledger
        self.lives = self._memory.arrays.lives

    def __len__(self) -> int:
        return int(self._ledger.control[_COUNT])

    def append(self, *blocks: int) -> None:
        _append(self._memory.handle, np.array(blocks, np.int64))

    def remove(self, *blocks: int) -> None:
        _remove(self._memory.handle, np.array(blocks, np.int64))

    def pop(self, count: int) -> list[int]:
        popped = np.empty(count, np.int64)
        _draw(self._memory.handle, popped)
        return [int(block) for block in popped]

    def blocks(self) -> list[int]:
        """All of them, oldest first."""
        ring, tickets = self._ledger.evict.ring, self._ledger.blocks.evict_ticket
        positions = range(int(self._ledger.control[_HEAD]), int(self._ledger.control[_TAIL]))
        entries = [(int(ring[position % len(ring)]), position) for position in positions]
        return [block for block, position in entries if tickets[block] == position]

    @property
    def span(self) -> int:
        """Entries between head and tail, valid or not."""
        return int(self._ledger.control[_TAIL]) - int(self._ledger.control[_HEAD])

    def use(self, block: int) -> None:
        _live(self._memory.handle, 0, block, 0)

    def fill(self, block: int, depth: int) -> None:
        _live(self._memory.handle, 1, block, depth)

    def cache(self, block: int) -> None:
        _live(self._memory.handle, 2, block, 0)

    def turns(self, block: int) -> int:
        """How often a block is passed over."""
        count = 0
        while _live(self._memory.handle, 3, block, 0):
            count += 1
        return count
