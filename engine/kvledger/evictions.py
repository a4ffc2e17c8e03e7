"""The eviction order as a reader sees it: a ring of blocks, an entry being valid while the block's ticket names it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.parts import Turns
from kvledger.views import I32, I64

Mask = NDArray[np.bool_]


class EvictionOrder:
    """The part of the ring in use, borrowed. `damage` says in words what was out of bounds."""

    def __init__(self, sections: Sections, control: Mapping[str, int]) -> None:
        self._size = sections.head.sections["evict.ring"].shape[0]
        self._head, self._tail = control["evict_head"], control["evict_tail"]
        self.damage: tuple[str, ...] = ()
        if not 0 <= self._head <= self._tail <= self._head + self._size:
            self.damage = (f"evict_head={self._head}, evict_tail={self._tail} in a ring of {self._size}",)
            self._head = self._tail = 0
        first, last = self._head % self._size, self._head % self._size + self._tail - self._head
        self._pieces: list[I32] = [sections.read("evict.ring", min(last, self._size) - first, start=first)]
        if last > self._size:
            self._pieces.append(sections.read("evict.ring", last - self._size, buffer="evict.ring.wrapped"))

    def mark(self, named: Mask) -> None:
        """Set the blocks that the ring names: those in the order, and some that have left it since."""
        named[:] = False
        for ring in self._pieces:
            # A ring that names no block somewhere is damaged: whoever is named there shows as lost.
            inside = ring if not len(ring) or _within(ring, len(named)) else ring[(ring >= 0) & (ring < len(named))]
            named[inside.astype(np.intp)] = True  # several times as fast as by int32

    def bears_out(self, blocks: I32, tickets: I64) -> Mask:
        """Which of some blocks own the entry that their ticket names."""
        theirs = (tickets >= self._head) & (tickets < self._tail)
        place = tickets[theirs] - self._head
        ring = self._pieces[0] if len(self._pieces) == 1 else np.concatenate(self._pieces)
        theirs[theirs] = ring[place] == blocks[theirs]
        return theirs


def _within(blocks: I32, capacity: int) -> bool:
    return int(blocks.min()) >= 0 and int(blocks.max()) < capacity


class TicketCheck:
    """Whether tickets bear out that the blocks called cached, and no others, are in the eviction order.

    An audit goes by a block's state and by whether the ring names it. That the ticket names the very entry is looked up
    for a part of the pool in each audit, and every time for blocks that were wrong.
    """

    def __init__(self) -> None:
        self._turns = Turns()
        self._wrong: I32 = np.empty(0, np.int32)

    def compare(self, sections: Sections, order: EvictionOrder, evictable: Mask) -> I32:
        """Correct `evictable` by the tickets; returns the blocks it was wrong about, ascending."""
        part = self._turns.next(len(evictable))
        tickets = sections.read("block.evict_ticket", part.stop - part.start, start=part.start)
        some = np.flatnonzero((tickets >= 0) | evictable[part])
        wrong = _corrected(order, evictable, (some + part.start).astype(np.int32), tickets[some])
        again = _corrected(order, evictable, self._wrong, sections.values("block.evict_ticket", self._wrong))
        self._wrong = np.union1d(wrong, again)
        return self._wrong


def _corrected(order: EvictionOrder, evictable: Mask, blocks: I32, tickets: I64) -> I32:
    """Set `evictable` of some blocks to what their tickets say; returns those where it was not that."""
    truly = order.bears_out(blocks, tickets)
    corrected: I32 = blocks[truly != evictable[blocks]]
    evictable[blocks] = truly
    return corrected
