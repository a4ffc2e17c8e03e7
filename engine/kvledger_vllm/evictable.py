"""The ledger's eviction order, mirrored: cached blocks in the order in which they became evictable.

Owns `evict.ring`, `block.evict_ticket` and their three control words. Blocks must be stamped before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger

Ids = NDArray[np.intp]
_HEAD, _TAIL, _COUNT = (CONTROL_INDEX[name] for name in ("evict_head", "evict_tail", "cached_count"))
_NO_TICKET = -1


class Evictable:
    """Cached blocks; an entry of the ring is valid while its block's ticket names it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._control = ledger, ledger.control
        self._ring, self._ticket = ledger.evict.ring, ledger.blocks.evict_ticket
        self._mask = len(self._ring) - 1
        self._words, self._tickets = self._control.data, self._ticket.data

    def __len__(self) -> int:
        count: int = self._words[_COUNT]
        return count

    def has(self, blocks: Ids) -> NDArray[np.bool_]:
        """Which of the blocks are in the order."""
        held: NDArray[np.bool_] = self._ticket[blocks] > _NO_TICKET
        return held

    def remove(self, blocks: Ids) -> None:
        """Take blocks that are in the order out of it."""
        if len(blocks):
            self._ticket[blocks] = _NO_TICKET
            self._control[_COUNT] -= len(blocks)

    def take(self, blocks: list[int]) -> None:
        """Take those of the blocks out that are in the order, one by one."""
        tickets, taken = self._tickets, 0
        for block in blocks:
            if tickets[block] > _NO_TICKET:
                tickets[block] = _NO_TICKET
                taken += 1
        self._words[_COUNT] -= taken

    def add(self, blocks: Ids) -> None:
        """Add blocks that are not in the order as its newest."""
        if not len(blocks):
            return
        if int(self._control[_TAIL]) + len(blocks) - int(self._control[_HEAD]) > len(self._ring):
            self._compact()
        self._store(blocks)
        self._control[_COUNT] += len(blocks)

    def _store(self, blocks: Ids) -> None:
        tail = int(self._control[_TAIL])
        positions = np.arange(tail, tail + len(blocks))
        self._ring[positions & self._mask] = blocks
        self._ticket[blocks] = positions
        self._control[_TAIL] = tail + len(blocks)

    def _compact(self) -> None:
        """Move the valid entries together behind the tail: the ring holds twice the pool."""
        head, tail = int(self._control[_HEAD]), int(self._control[_TAIL])
        positions = np.arange(head, tail)
        blocks = self._ring[positions & self._mask].astype(np.intp)
        valid = blocks[self._ticket[blocks] == positions]
        self._ledger.stamp(valid)
        self._control[_HEAD] = tail
        self._store(valid)
