"""Pointers between blocks and the prefix index, which must agree: both ways, and by key.

The index is several times the size of the pool, and what changes in a second is spread all over it. So of a large one
every eighth audit looks at a part, in turns; what was wrong is looked at every time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.parts import Turns
from kvledger.sweep import NO_END, Sweep, few_true
from kvledger.views import I32, I64
from kvledger.words import BlockState

AUDITS_PER_ROUND = 32
ROUNDS_PER_KEYS = 2  # keys are compared in every second round: that needs two more large sections
AUDITS_PER_PART = 8  # what every block names must be read for it, however small the part
SLOTS_TOGETHER = 1 << 16

Mask = NDArray[np.bool_]


class LinkCheck:
    """Compares the pointers of one ledger, audit after audit. Remembers what was wrong."""

    def __init__(self) -> None:
        self._turns = Turns(every=AUDITS_PER_PART, audits=AUDITS_PER_ROUND)
        self._wrong_blocks: I32 = np.empty(0, np.int32)
        self._wrong_slots: I64 = np.empty(0, np.int64)
        self._keys_due = True
        self._part = slice(0, 0)

    def begin(self, sections: Sections) -> slice:
        """Choose this audit's part of the index, and read its entries; returns which claims are to be collected."""
        size = sections.head.sections["index.block"].shape[0]
        self._keys_due = self._turns.round % ROUNDS_PER_KEYS == 0
        self._part = part = self._turns.next(size)
        # A buffer of its own: what was wrong is looked up in the whole section meanwhile.
        self._entries: I32 = sections.read("index.block", part.stop - part.start, start=part.start, buffer="index.part")
        # A claim beyond the index belongs to its last part.
        return part if part.stop < size else slice(part.start, NO_END)

    def compare(self, sections: Sections, sweep: Sweep, published: int) -> I32:
        """Blocks named by, or naming, an index slot that does not agree: once for each such pointer.

        `published` was read before all else. Of the blocks that have moved since, none is named or remembered.
        """
        blocks, slots = self._found(sections, sweep)
        named = self._entries[slots - self._part.start]
        unmoved = _unmoved(sections, np.concatenate([blocks, named]), published)
        blocks, still = blocks[unmoved[: len(blocks)]], unmoved[len(blocks) :]
        slots, named = slots[still], named[still]
        again, named_again = _stale_again(sections, self._wrong_slots)
        self._wrong_blocks = np.union1d(blocks, _denied_again(sections, self._wrong_blocks))
        self._wrong_slots, first = np.unique(np.concatenate([slots, again]), return_index=True)
        stale: I32 = np.concatenate([self._wrong_blocks, np.concatenate([named, named_again])[first]])
        return stale

    def _found(self, sections: Sections, sweep: Sweep) -> tuple[I32, I64]:
        """(blocks that name a slot of the part wrongly, slots of the part that name a block wrongly).

        The slots are gone through in pieces; a block answered by the slot it names is struck off `sweep.claiming`.
        """
        if not len(self._entries):
            return np.empty(0, np.int32), np.empty(0, np.int64)
        hashes = sections.read("block.prefix_hash") if self._keys_due else None
        wrong: list[I64] = []
        for start in range(0, len(self._entries), SLOTS_TOGETHER):
            entries, first = self._entries[start : start + SLOTS_TOGETHER], self._part.start + start
            slots = np.flatnonzero(_names(entries, len(sweep.held)))
            named = entries[slots].astype(np.intp)  # gathers several times as fast as int32
            agreed = sweep.claims[named] == slots + first
            sweep.claiming[named[agreed]] = False
            if hashes is not None:
                keys = sections.read("index.key", len(entries), start=first, buffer="index.part.key")
                agreed &= hashes[named] == keys[slots]
            wrong.append(slots[~agreed] + first)
        # A free block has no content that an entry could name.
        blocks = np.concatenate([few_true(sweep.claiming).astype(np.int32), sweep.idle_claimants])
        return blocks, np.concatenate(wrong)

    def damage(self, capacity: int) -> tuple[str, ...]:
        """Entries of the part that name no block, in words."""
        outside = int(np.count_nonzero(self._entries >= capacity))
        return (f"{outside} entries of index.block name no block",) if outside else ()


def _unmoved(sections: Sections, blocks: I32, published: int) -> Mask:
    unmoved: Mask = sections.values("block.changed_seq", blocks) <= max(published, 0)
    return unmoved


def _names(entries: I32, capacity: int) -> Mask:
    naming: Mask = (entries >= 0) & (entries < capacity)
    return naming


def _denied_again(sections: Sections, blocks: I32) -> I32:
    """Those of some blocks that still name a slot which does not name them, or are free and name one."""
    if not len(blocks):
        return blocks
    claims = sections.values("block.index_slot", blocks)
    blocks, claims = blocks[claims >= 0], claims[claims >= 0]
    inside = claims < sections.head.sections["index.block"].shape[0]
    agreed = inside & (sections.values("block.state", blocks) != int(BlockState.FREE))
    agreed[inside] &= sections.values("index.block", claims[inside]) == blocks[inside]
    denied: I32 = blocks[~agreed]
    return denied


def _stale_again(sections: Sections, slots: I64) -> tuple[I64, I32]:
    """Those of some slots that still name a block which does not name them, or has another key; and the blocks."""
    named: I32 = sections.values("index.block", slots)
    naming = _names(named, sections.head.sections["block.state"].shape[0])
    slots, named = slots[naming], named[naming]
    stale = sections.values("block.index_slot", named) != slots
    stale |= sections.values("block.prefix_hash", named) != sections.values("index.key", slots)
    return slots[stale], named[stale]
