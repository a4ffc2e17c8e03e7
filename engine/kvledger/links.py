"""Pointers between blocks and the prefix index, which must agree: both ways, and by key.

The index is several times the size of the pool, and what changes in a second is spread all over it. So of a large one
every fourth audit looks at a part, in turns; what was wrong is looked at every time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.parts import Turns
from kvledger.sweep import Sweep, few_true
from kvledger.views import I32, I64
from kvledger.words import BlockState

ROUNDS_PER_KEYS = 4  # keys are compared in every fourth round: that needs two more large sections
AUDITS_PER_PART = 4  # what every block names must be read for it, however small the part
KEYS_TOGETHER = 1 << 16
MOST_SLOTS = 2**31

Mask = NDArray[np.bool_]


class LinkCheck:
    """Compares the pointers of one ledger, audit after audit. Remembers what was wrong."""

    def __init__(self) -> None:
        self._turns = Turns(every=AUDITS_PER_PART)
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
        return part if part.stop < size else slice(part.start, MOST_SLOTS)

    def compare(self, sections: Sections, sweep: Sweep, published: int) -> I32:
        """Blocks named by, or naming, an index slot that does not agree: once for each such pointer.

        `published` was read before all else. Of the blocks that have moved since, none is named or remembered.
        """
        blocks, slots = self._found(sections, sweep)
        named = self._entries[slots - self._part.start]
        blocks = blocks[_unmoved(sections, blocks, published)]
        still = _unmoved(sections, named, published)
        slots, named = slots[still], named[still]
        again, named_again = _stale_again(sections, self._wrong_slots)
        self._wrong_blocks = np.union1d(blocks, _denied_again(sections, self._wrong_blocks))
        self._wrong_slots, first = np.unique(np.concatenate([slots, again]), return_index=True)
        stale: I32 = np.concatenate([self._wrong_blocks, np.concatenate([named, named_again])[first]])
        return stale

    def _found(self, sections: Sections, sweep: Sweep) -> tuple[I32, I64]:
        """(blocks that name a slot of the part wrongly, slots of the part that name a block wrongly)."""
        claims = sweep.claims - np.int32(self._part.start)
        answered = (claims < len(self._entries)) & (self._entries.take(claims, mode="clip") == sweep.claimants)
        # A free block has no content that an entry could name.
        blocks: I32 = sweep.claimants[~answered | sweep.free[sweep.claimants]]
        slots = [self._unanswered(claims[answered], sweep), self._of_another_key(sections, sweep)]
        return blocks, np.unique(np.concatenate(slots))

    def damage(self, capacity: int) -> tuple[str, ...]:
        """Entries of the part that name no block, in words."""
        outside = int(np.count_nonzero(self._entries >= capacity))
        return (f"{outside} entries of index.block name no block",) if outside else ()

    def _unanswered(self, answered: I32, sweep: Sweep) -> I64:
        """Slots of the part that name a block which does not name them."""
        entries = self._entries.copy()
        entries[answered] = -1
        unanswered: I64 = few_true(_names(entries, len(sweep.held))) + self._part.start
        return unanswered

    def _of_another_key(self, sections: Sections, sweep: Sweep) -> I64:
        """Slots of the part with another key than the block they name."""
        if not self._keys_due:
            return np.empty(0, np.int64)
        hashes, found = sections.read("block.prefix_hash"), [np.empty(0, np.int64)]
        for start in range(0, len(self._entries), KEYS_TOGETHER):
            entries, first = self._entries[start : start + KEYS_TOGETHER], self._part.start + start
            keys = sections.read("index.key", len(entries), start=first, buffer="index.part.key")
            slots = np.flatnonzero(_names(entries, len(sweep.held)))
            found.append(slots[hashes.take(entries[slots]) != keys[slots]] + first)
        return np.concatenate(found)


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
