"""The eviction order: cached blocks, least recently used first, as a ring in the ledger.

An entry at position p is valid while its block's ticket is p, so a block leaves the order by losing its ticket and the
ring is never searched. A block whose turn has come and that its policy passes over goes to the end, as if it had been
used: the ring is the order in which blocks are judged. Owns `evict.ring`, `block.evict_ticket` and the three control
words; never a block's content.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_engine.reprieves import Reprieves

Ids = NDArray[np.intp]

_HEAD, _TAIL, _COUNT = CONTROL_INDEX["evict_head"], CONTROL_INDEX["evict_tail"], CONTROL_INDEX["cached_count"]
_SCAN_ENTRIES = 64


class EvictionOrder:
    """Cached blocks in the order in which they will be recycled, but for those that a policy passes over then."""

    def __init__(self, ledger: Ledger, policy: Reprieves | None = None) -> None:
        self._ledger, self._control, self._policy = ledger, ledger.control, policy
        self._ring, self._ticket = ledger.evict.ring, ledger.blocks.evict_ticket
        self._mask = len(self._ring) - 1

    def __len__(self) -> int:
        return int(self._control[_COUNT])

    def append(self, blocks: Ids) -> None:
        """Add stamped, distinct blocks that are not in the order as its newest, in the order given."""
        self._store(self._tail_for(len(blocks)), blocks)
        self._control[_COUNT] += len(blocks)

    def remove(self, blocks: Ids) -> None:
        """Take stamped blocks out of the order, wherever they are in it."""
        self._ticket[blocks] = -1
        self._control[_COUNT] -= len(blocks)

    def pop(self, count: int) -> Ids:
        """Stamp and remove the `count` blocks that go first; there must be that many."""
        if self._policy is not None:
            return self._pop_judged(count, self._policy)
        found: list[Ids] = []
        head, tail, missing = int(self._control[_HEAD]), int(self._control[_TAIL]), count
        while missing > 0 and head < tail:
            positions, blocks = self._next(head, tail, missing)
            found.append(blocks[:missing])
            missing -= len(found[-1])
            # Everything before the new head was taken now or had lost its ticket before: no entry is looked at twice.
            head = int(self._ticket[found[-1][-1]] if missing == 0 else positions[-1]) + 1
        assert missing == 0, f"the eviction order lacks {missing} of {len(self)} blocks"
        popped = self._recycled(found)
        self._control[_HEAD] = head
        return popped

    def _next(self, head: int, tail: int, missing: int) -> tuple[Ids, Ids]:
        """Some of the next positions, and the blocks that own their entries, in order."""
        positions = np.arange(head, min(head + 2 * missing + _SCAN_ENTRIES, tail))
        blocks = self._ring[positions & self._mask].astype(np.intp)
        return positions, blocks[self._ticket[blocks] == positions]

    def _recycled(self, found: list[Ids]) -> Ids:
        popped = np.concatenate(found) if found else np.empty(0, np.intp)
        self._ledger.stamp(popped)
        self.remove(popped)
        return popped

    def _pop_judged(self, count: int, policy: Reprieves) -> Ids:
        """As `pop`, with a policy: no block has more lives than it can spend, so that this comes to an end."""
        found: list[Ids] = []
        missing = count
        assert count <= len(self), f"the eviction order lacks {count - len(self)} of {len(self)} blocks"
        while missing > 0:
            positions, blocks = self._next(int(self._control[_HEAD]), int(self._control[_TAIL]), missing)
            spared = policy.has_life(blocks)
            taken = (~spared).nonzero()[0][:missing]
            missing -= len(taken)
            judged = int(taken[-1]) + 1 if missing == 0 else len(blocks)
            head = int(self._ticket[blocks[judged - 1]] if missing == 0 else positions[-1]) + 1
            found.append(self._recycled([blocks[taken]]))
            self._control[_HEAD] = head
            self._spare(blocks[:judged][spared[:judged]], policy)
        return np.concatenate(found) if found else np.empty(0, np.intp)

    def _spare(self, blocks: Ids, policy: Reprieves) -> None:
        """Blocks go to the end, a life less."""
        if len(blocks) == 0:
            return
        policy.spend(blocks)
        self._ledger.stamp(blocks)
        self._ticket[blocks] = -1
        self._store(self._tail_for(len(blocks)), blocks)

    def blocks(self) -> Ids:
        """All blocks of the order, oldest first."""
        positions = np.arange(int(self._control[_HEAD]), int(self._control[_TAIL]))
        blocks = self._ring[positions & self._mask].astype(np.intp)
        valid: Ids = blocks[self._ticket[blocks] == positions]
        return valid

    def _tail_for(self, count: int) -> int:
        """Where so many entries can be stored."""
        tail = int(self._control[_TAIL])
        return self._compact() if tail + count - int(self._control[_HEAD]) > len(self._ring) else tail

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
