"""The ledger's free list, as a mirror needs it: any block may leave it, wherever it lies.

Owns `free.list` and its count. An entry that is moved to close a gap is stamped by the caller first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger

Ids = NDArray[np.intp]
_FREE = CONTROL_INDEX["free_count"]


class FreeList:
    """A stack of free blocks, and where in it each block lies (-1: nowhere)."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._list, self._control = ledger, ledger.free.list, ledger.control
        self._place = np.full(ledger.limits.capacity_blocks, -1, np.intp)
        count = len(self)
        self._place[self._list[:count]] = np.arange(count)
        self._words, self._entries, self._places = self._control.data, self._list.data, self._place.data
        self._changed = ledger.blocks.changed_seq.data

    def __len__(self) -> int:
        return int(self._control[_FREE])

    def has(self, blocks: Ids) -> NDArray[np.bool_]:
        """Which of the blocks are listed."""
        listed: NDArray[np.bool_] = self._place[blocks] >= 0
        return listed

    def moved_by_removal(self, blocks: Ids) -> Ids:
        """The entries that `remove` will move: stamp them first."""
        if not len(blocks):
            return blocks
        left = len(self) - len(blocks)
        tail = self._list[left : len(self)].astype(np.intp)
        gone = np.zeros(len(tail), np.bool_)
        inside = self._place[blocks] - left
        gone[inside[inside >= 0]] = True
        moved: Ids = tail[~gone]
        return moved

    def remove(self, blocks: Ids, moved: Ids) -> None:
        """Take distinct, listed blocks out; `moved` is what `moved_by_removal` answered for them."""
        if not len(blocks):
            return
        left = len(self) - len(blocks)
        places = self._place[blocks]
        holes = places[places < left]
        self._list[holes] = moved
        self._place[moved] = holes
        self._place[blocks] = -1
        self._control[_FREE] = left

    def take(self, blocks: list[int]) -> list[int]:
        """Take blocks out, one by one, stamping the entries that close the gaps. Returns those that were not listed."""
        words, listed, places, changed, seq = self._words, self._entries, self._places, self._changed, self._ledger.seq
        left, others = words[_FREE], []
        for block in blocks:
            place = places[block]
            if place < 0:
                others.append(block)
                continue
            left -= 1
            last = listed[left]
            changed[last] = seq
            listed[place], places[last] = last, place
            places[block] = -1
        words[_FREE] = left
        return others

    def add(self, blocks: Ids) -> None:
        """Put distinct blocks that are not listed on the list."""
        if not len(blocks):
            return
        count = len(self)
        self._list[count : count + len(blocks)] = blocks
        self._place[blocks] = np.arange(count, count + len(blocks))
        self._control[_FREE] = count + len(blocks)
