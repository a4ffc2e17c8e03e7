"""The ledger's eviction order, mirrored: cached blocks in the order in which they became evictable.

Owns `evict.ring`, `block.evict_ticket` and their three control words. Blocks must be stamped before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger

_HEAD, _TAIL, _COUNT = (CONTROL_INDEX[name] for name in ("evict_head", "evict_tail", "cached_count"))
_NO_TICKET = -1


class Evictable:
    """Cached blocks; an entry of the ring is valid while its block's ticket names it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._words = ledger, ledger.control.data
        self._ring, self._ticket = ledger.evict.ring, ledger.blocks.evict_ticket
        self._mask = len(self._ring) - 1
        self._entries: Any = self._ring.data
        self._tickets: Any = self._ticket.data

    def __len__(self) -> int:
        count: int = self._words[_COUNT]
        return count

    def has(self, block: int) -> bool:
        """Whether a block is in the order."""
        held: bool = self._tickets[block] > _NO_TICKET
        return held

    def take(self, blocks: Iterable[int]) -> None:
        """Take those of the blocks out that are in the order."""
        tickets, taken = self._tickets, 0
        for block in blocks:
            if tickets[block] > _NO_TICKET:
                tickets[block] = _NO_TICKET
                taken += 1
        self._words[_COUNT] -= taken

    def add(self, blocks: Sequence[int]) -> None:
        """Add blocks that are not in the order as its newest."""
        words = self._words
        if words[_TAIL] + len(blocks) - words[_HEAD] > len(self._ring):
            self._compact()
        entries, tickets, mask, tail = self._entries, self._tickets, self._mask, words[_TAIL]
        for block in blocks:
            entries[tail & mask], tickets[block] = block, tail
            tail += 1
        words[_TAIL] = tail
        words[_COUNT] += len(blocks)

    def _compact(self) -> None:
        """Move the valid entries together behind the tail: the ring holds twice the pool."""
        head, tail = self._words[_HEAD], self._words[_TAIL]
        positions = np.arange(head, tail)
        blocks = self._ring[positions & self._mask].astype(np.intp)
        valid = blocks[self._ticket[blocks] == positions]
        self._ledger.stamp(valid)
        self._words[_HEAD] = tail
        moved = np.arange(tail, tail + len(valid))
        self._ring[moved & self._mask] = valid
        self._ticket[valid] = moved
        self._words[_TAIL] = tail + len(valid)
