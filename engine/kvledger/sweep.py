"""One pass over the blocks of a ledger, piece by piece: what each says of itself against what the others say of it.

A piece stays in the processor's cache while it is looked at; of the whole pool, only what contradicts is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.views import I32, U8
from kvledger.words import BlockState

PIECE = 1 << 16
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """What was read of all blocks before the pass, and which index slots are to be collected.

    `explained` are the references that tables and pins account for, `listed` how often the free list names a block,
    `ringed` whether the eviction ring does.
    """

    explained: I32
    listed: U8
    ringed: Mask
    slots: slice


class Sweep:
    """The pass, made when this is. `held`, `free` and `evictable` are masks over all blocks, borrowed.

    `wrong` are blocks whose count is not what explains it, `surplus` by how much it is above; `misplaced` are those
    that do not have exactly one place among free list, eviction order and holders. `claims` are the index slots asked
    for that blocks name, `claimants` those blocks.
    """

    def __init__(self, sections: Sections, others: Others) -> None:
        self._sections, self._others = sections, others
        capacity = len(others.listed)
        self.held: Mask = sections.scratch("held", capacity, np.bool_)
        self.free: Mask = sections.scratch("free", capacity, np.bool_)
        self.evictable: Mask = sections.scratch("evictable", capacity, np.bool_)
        pieces = [self._piece(start, min(start + PIECE, capacity)) for start in range(0, capacity, PIECE)]
        columns = [np.concatenate(column) for column in zip(*pieces, strict=True)]
        self.wrong, self.surplus, self.misplaced, self.claimants, self.claims = columns

    def places(self, blocks: I32) -> U8:
        """How many places some blocks have."""
        places: U8 = self._others.listed[blocks] + self.evictable[blocks] + self.held[blocks]
        return places

    def _piece(self, start: int, stop: int) -> tuple[NDArray[Any], ...]:
        others, part = self._others, slice(start, stop)
        claimants, claims = self._claims(part)
        state, count = self._read("state", part), self._read("ref_count", part)
        held, evictable = np.greater(count, 0, out=self.held[part]), self.evictable[part]
        np.equal(state, int(BlockState.FREE), out=self.free[part])
        np.equal(state, int(BlockState.CACHED), out=evictable)
        evictable &= others.ringed[part]
        places = others.listed[part] + evictable.view(np.uint8)
        places += held.view(np.uint8)
        misplaced = few_true(places != 1)
        explained = others.explained[part]
        wrong = few_true(count != explained)
        return (
            (wrong + start).astype(np.int32),
            count[wrong].astype(np.int64) - explained[wrong],
            (misplaced + start).astype(np.int32),
            (claimants + start).astype(np.int32),
            claims,
        )

    def _claims(self, part: slice) -> tuple[NDArray[np.int64], I32]:
        """Which blocks of a piece name one of the slots asked for, and the slots."""
        if self._others.slots.start == self._others.slots.stop:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        claims = self._read("index_slot", part)
        claimants = _in_slice(claims, self._others.slots)
        return claimants, claims[claimants]

    def _read(self, name: str, part: slice) -> NDArray[Any]:
        return self._sections.read(f"block.{name}", part.stop - part.start, start=part.start, buffer=f"piece.{name}")


def few_true(mask: Mask) -> NDArray[np.int64]:
    """`flatnonzero` for a mask with few true elements: eight are passed over at a time."""
    whole = len(mask) // 8 * 8
    words = np.flatnonzero(mask[:whole].view(np.uint64))
    near: NDArray[np.int64] = np.concatenate(((words[:, None] * 8 + np.arange(8)).ravel(), np.arange(whole, len(mask))))
    return near[mask[near]]


def _in_slice(values: I32, wanted: slice) -> NDArray[np.int64]:
    """Where int32 values lie in [start, stop), by one comparison: as unsigned numbers, those below start are large."""
    distance = (values - np.int32(wanted.start)).view(np.uint32)
    near: NDArray[np.int64] = np.flatnonzero(distance < np.uint32(wanted.stop - wanted.start))
    inside: NDArray[np.int64] = near[
        values[near] >= wanted.start
    ]  # the difference of a negative number may have wrapped around
    return inside
