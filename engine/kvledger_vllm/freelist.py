"""The ledger's free list, as a mirror needs it: any block may leave it, wherever it lies. Owns `free.list`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger

_FREE = CONTROL_INDEX["free_count"]


class FreeList:
    """A stack of free blocks, and where in it each block lies (-1: nowhere)."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._words, self._list = ledger, ledger.control.data, ledger.free.list.data
        places = np.full(ledger.limits.capacity_blocks, -1, np.intp)
        count = int(ledger.control[_FREE])
        # vLLM takes the lowest of never-used blocks first: those on top leave without another closing their gap.
        ledger.free.list[:count] = np.sort(ledger.free.list[:count])[::-1]
        places[ledger.free.list[:count]] = np.arange(count)
        self._places = places.data
        self._changed = ledger.blocks.changed_seq.data

    def has(self, block: int) -> bool:
        """Whether a block is listed."""
        return self._places[block] >= 0

    def listed(self, blocks: slice) -> NDArray[np.bool_]:
        """Whether each block of a stretch is listed."""
        return np.asarray(self._places)[blocks] >= 0

    def take(self, blocks: Sequence[int]) -> None:
        """Take listed blocks out; the entries that close the gaps are stamped first."""
        words, listed, places, changed, seq = self._words, self._list, self._places, self._changed, self._ledger.seq
        left = words[_FREE]
        for block in blocks:
            place = places[block]
            left -= 1
            if place != left:
                last = listed[left]
                changed[last] = seq
                listed[place], places[last] = last, place
            places[block] = -1
        words[_FREE] = left

    def add(self, blocks: Sequence[int]) -> None:
        """Put distinct blocks that are not listed, and were stamped, on the list."""
        listed, places, count = self._list, self._places, self._words[_FREE]
        for block in blocks:
            listed[count], places[block] = block, count
            count += 1
        self._words[_FREE] = count
