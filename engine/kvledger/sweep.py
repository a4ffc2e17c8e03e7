"""One pass over the blocks of a ledger, piece by piece: what each says of itself against what the others say of it.

A piece is large enough that calls cost nothing beside it, and stays in the cache; only what contradicts is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.views import I32, I64, U8
from kvledger.words import BlockState

PIECE = 1 << 18
NO_END = 2**31
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What was read of all blocks before the pass, and which index slots are to be collected.

    `tabled` are the references of tables, `explained` those of tables and pins, `listed` how often the free list names
    a block, `ringed` whether the eviction ring does.
    """

    tabled: I32
    explained: I32
    listed: U8
    ringed: Mask
    slots: slice


class Sweep:
    """The pass, made when this is. Its masks over all blocks are borrowed: `held`, `free`, `evictable`, and `shared`,
    which two or more table entries name.

    `wrong` are blocks whose count is not what explains it, `surplus` by how much it is above; `misplaced` are those
    that do not have exactly one place among free list, eviction order and holders.

    If index slots are asked for, `claims` are the slots that all blocks name and `claiming` masks those that name one
    of the slots asked for, both borrowed; `idle_claimants` are those that are free, too.
    """

    def __init__(self, sections: Sections, others: Others) -> None:
        self._sections, self._others = sections, others
        capacity = len(others.listed)
        self.held: Mask = sections.scratch("held", capacity, np.bool_)
        self.free: Mask = sections.scratch("free", capacity, np.bool_)
        self.evictable: Mask = sections.scratch("evictable", capacity, np.bool_)
        self.shared: Mask = sections.scratch("shared", capacity, np.bool_)
        self._follows = others.slots.start < others.slots.stop
        self.claims: I32 = np.empty(0, np.int32)
        self.claiming: Mask = sections.scratch("claiming", capacity if self._follows else 0, np.bool_)
        pieces = [self._piece(start, min(start + PIECE, capacity)) for start in range(0, capacity, PIECE)]
        odd, surplus, places, self.idle_claimants = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        self.wrong: I32 = odd[surplus != 0]
        self.surplus: I64 = surplus[surplus != 0]
        self.misplaced: I32 = odd[places != 1]

    def places(self, blocks: I32) -> U8:
        """How many places some blocks have."""
        places: U8 = self._others.listed[blocks] + self.evictable[blocks] + self.held[blocks]
        return places

    def _piece(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        """(blocks that contradict themselves, their surplus, how many places they have; idle claimants)."""
        others, part = self._others, slice(start, stop)
        self._claim(part)
        state, count = self._read("state", part), self._read("ref_count", part)
        held, evictable = np.greater(count, 0, out=self.held[part]), self.evictable[part]
        np.equal(state, int(BlockState.FREE), out=self.free[part])
        np.equal(state, int(BlockState.CACHED), out=evictable)
        evictable &= others.ringed[part]
        np.greater(others.tabled[part], 1, out=self.shared[part])
        places = others.listed[part] + evictable.view(np.uint8)
        places += held.view(np.uint8)
        explained = others.explained[part]
        differs = count != explained
        differs |= places != 1
        odd = few_true(differs)
        return (
            (odd + start).astype(np.int32),
            count[odd].astype(np.int64) - explained[odd],
            places[odd],
            (self._idle_claimants(part) + start).astype(np.int32),
        )

    def _claim(self, part: slice) -> None:
        """Which blocks of a piece name one of the slots asked for."""
        if not self._follows:
            return
        self.claims = self._sections.refresh("block.index_slot", part.start, part.stop)
        slots, claims = self._others.slots, self.claims[part]
        np.greater_equal(claims, slots.start, out=self.claiming[part])
        if slots.stop < NO_END:
            self.claiming[part] &= claims < slots.stop

    def _idle_claimants(self, part: slice) -> NDArray[np.int64]:
        """Blocks of a piece that are free and name one of the slots asked for."""
        return few_true(self.claiming[part] & self.free[part]) if self._follows else np.empty(0, np.int64)

    def _read(self, name: str, part: slice) -> NDArray[Any]:
        return self._sections.read(f"block.{name}", part.stop - part.start, start=part.start, buffer=f"piece.{name}")


def few_true(mask: Mask) -> NDArray[np.int64]:
    """`flatnonzero` for a mask with few true elements: eight are passed over at a time."""
    whole = len(mask) // 8 * 8
    words = np.flatnonzero(mask[:whole].view(np.uint64))
    near: NDArray[np.int64] = np.concatenate(((words[:, None] * 8 + np.arange(8)).ravel(), np.arange(whole, len(mask))))
    return near[mask[near]]
