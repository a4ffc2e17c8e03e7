"""The eviction order: cached blocks, least recently used first, as a ring in the ledger.

An entry at position p is valid while its block's ticket is p, so a block leaves the order by losing its ticket and the
ring is never searched. Owns `evict.ring`, `block.evict_ticket` and the three control words; never a block's content.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger

Ids = NDArray[np.intp]

_HEAD, _TAIL, _COUNT = CONTROL_INDEX["evict_head"], CONTROL_INDEX["evict_tail"], CONTROL_INDEX["cached_count"]
_SCAN_ENTRIES = 64


class EvictionOrder:
    """Cached blocks in the order in which they will be recycled."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._control = ledger, ledger.control
        self._ring, self._ticket = ledger.evict.ring, ledger.blocks.evict_ticket
        self._mask = len(self._ring) - 1

    def __len__(self) -> int:
        return int(self._control[_COUNT])

    def append(self, blocks: Ids) -> None:
        """Add stamped, distinct blocks that are not in the order as its newest, in the order given."""
        tail = int(self._control[_TAIL])
        if tail + len(blocks) - int(self._control[_HEAD]) > len(self._ring):
            tail = self._compact()
        self._store(tail, blocks)
        self._control[_COUNT] += len(blocks)

    def remove(self, blocks: Ids) -> None:
        """Take stamped blocks out of the order, wherever they are in it."""
        self._ticket[blocks] = -1
        self._control[_COUNT] -= len(blocks)

    def pop(self, count: int) -> Ids:
        """Stamp and remove the `count` oldest blocks; there must be that many."""
        found: list[Ids] = []
        head, tail, missing = int(self._control[_HEAD]), int(self._control[_TAIL]), count
        while missing > 0 and head < tail:
            positions = np.arange(head, min(head + 2 * missing + _SCAN_ENTRIES, tail))
            blocks = self._ring[positions & self._mask].astype(np.intp)
            hits = np.flatnonzero(self._ticket[blocks] == positions)[:missing]
            found.append(blocks[hits])
            missing -= len(hits)
            # Everything before the new head was taken now or had lost its ticket before: no entry is looked at twice.
            head = int(positions[hits[-1]] if missing == 0 else positions[-1]) + 1
        assert missing == 0, f"the eviction order lacks {missing} of {len(self)} blocks"
        popped = np.concatenate(found) if found else np.empty(0, np.intp)
        self._ledger.stamp(popped)
        self.remove(popped)
        self._control[_HEAD] = head
        return popped

    def blocks(self) -> Ids:
        """All blocks of the order, oldest first."""
        positions = np.arange(int(self._control[_HEAD]), int(self._control[_TAIL]))
        blocks = self._ring[positions & self._mask].astype(np.intp)
        valid: Ids = blocks[self._ticket[blocks] == positions]
        return valid

    def _store(self, tail: int, blocks: Ids) -> None:
        positions = np.arange(tail, tail + len(blocks))
        self._ring[positions & self._mask] = blocks
        self._ticket[blocks] = positions
        self._control[_TAIL] = tail + len(blocks)

    def _compact(self) -> int:
        """Move the valid entries together behind the tail; returns the new tail."""
        valid, tail = self.blocks(), int(self._control[_TAIL])
        self._ledger.stamp(valid)
        self._control[_HEAD] = tail
        self._store(tail, valid)
        return tail + len(valid)
