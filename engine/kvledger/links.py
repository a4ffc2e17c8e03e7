"""Pointers that must agree: blocks with the prefix index, and cached blocks with the eviction ring.

Following them is a random access per block, the dearest part of an audit. So of a large pool only those that can have
changed since the last audit are followed, and a rolling share of the rest, against changes that nobody stamped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.views import I32, I64, U64
from kvledger.words import BlockState

AUDITS_PER_ROUND = 32
AUDITS_PER_KEYS = 4  # a share of the keys is compared in every fourth audit: that needs two more large sections
WHOLE_UP_TO = 1 << 15  # blocks (or index slots) that every audit follows in any case
PIECE = 1 << 15  # elements looked at together: what is copied and computed stays in the processor's cache

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Links:
    """What agrees and what does not.

    `evictable` says which blocks are in the eviction order: with a ticket, and a ring entry that bears it out.
    `stale_index` names a block once for each wrong pointer from or to the index. `indexed` counts the index's entries.
    """

    evictable: Mask
    stale_index: I32
    indexed: int
    damage: tuple[str, ...]


class LinkCheck:
    """Compares the pointers of one ledger, audit after audit. Remembers what it need not look at again.

    A block whose stamp is at most the last audit's `published_seq` was stable then and has not changed since, nor has
    any pointer to it: what was said of it then still holds. An index entry that names a changed block was either there
    at the last audit, and then the block named it, or was wrong already; or it is new: a wrong one that its block
    never named is found when its part of the index has its turn. What is wrong is looked at every time. Of a block
    that moved during an audit, what it named before is kept, in case it let go of it just then.
    """

    def __init__(self) -> None:
        self._published = -1
        self._round = 0
        self._index_slot: I32 | None = None
        self._wrong_blocks: NDArray[np.integer[Any]] = np.empty(0, np.int32)
        self._wrong_entries: I64 = np.empty(0, np.int64)

    def compare(
        self, sections: Sections, control: Mapping[str, int], *, state: NDArray[np.uint8], index_slot: I32
    ) -> Links:
        """Compare now. `control` was read before all else, `state` and `index_slot` are sections of this audit."""
        damage: list[str] = []
        published = control["published_seq"]
        due, moving, evictable, listed, tickets = self._blocks(sections, published)
        unlisted = listed[~_borne_out(sections, control, listed, tickets, damage)]
        evictable[unlisted] = False
        entries: I32 = sections.read("index.block")
        outside = np.count_nonzero(entries >= len(state)) if int(entries.max()) >= len(state) else 0
        if outside:
            damage.append(f"{outside} entries of index.block name no block")
        blocks = np.flatnonzero(due)
        denied = blocks[~_answered(entries, index_slot[blocks], blocks)]
        stale = self._stale_entries(sections, entries, state, index_slot, blocks)
        self._wrong_blocks, self._wrong_entries = np.concatenate([unlisted, denied]), stale
        self._published, self._round = published, self._round + 1
        if self._index_slot is None:
            self._index_slot = index_slot.copy()
        else:
            np.copyto(self._index_slot, index_slot, where=~moving)
        named = np.concatenate([denied, entries[stale]]).astype(np.int32)
        return Links(evictable, named, int(np.count_nonzero(entries >= 0)), tuple(damage))

    def _stale_entries(
        self, sections: Sections, entries: I32, state: NDArray[np.uint8], index_slot: I32, blocks: I64
    ) -> I64:
        """Index slots that name a block which does not name them, has another key, or is free.

        Looked at: this audit's share of the index, what was wrong last time, and what due `blocks` named last time.
        """
        known = self._wrong_entries
        share = _pieces(self._share(len(entries), self._round))
        found = [_unanswered(entries, slots, state, index_slot) for slots in (known, *share)]
        found += self._of_another_key(sections, entries, known)
        if self._index_slot is not None:
            before = self._index_slot[blocks]
            left = (before >= 0) & (before < len(entries)) & (before != index_slot[blocks])
            found.append(before[left][entries[before[left]] == blocks[left]].astype(np.int64))
        stale: I64 = np.unique(np.concatenate(found))
        return stale

    def _of_another_key(self, sections: Sections, entries: I32, known: I64) -> Iterator[I64]:
        """Index slots with another key than the block they name: those known, and now and then a share of the rest."""
        capacity = sections.head.sections["block.prefix_hash"].shape[0]
        hash_of = partial(sections.values, "block.prefix_hash")
        yield _other(entries, known, sections.values("index.key", known), capacity, hash_of)
        if self._round % AUDITS_PER_KEYS == 0:
            hashes = sections.read("block.prefix_hash")
            for slots in _pieces(self._share(len(entries), self._round // AUDITS_PER_KEYS)):
                keys = sections.read("index.key", len(slots), start=int(slots[0]), buffer="piece")
                yield _other(entries, slots, keys, capacity, hashes.__getitem__)

    def _blocks(self, sections: Sections, published: int) -> tuple[Mask, Mask, Mask, I32, I64]:
        """(blocks due, blocks moving, blocks with an eviction ticket, due blocks with a ticket, their tickets)."""
        capacity = sections.head.sections["block.state"].shape[0]
        due, moving, ticketed = np.zeros(capacity, np.bool_), *np.empty((2, capacity), np.bool_)
        due[self._share(capacity, self._round)] = True
        due[self._wrong_blocks] = True
        listed, tickets = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for start in range(0, capacity, PIECE):
            part = slice(start, min(start + PIECE, capacity))
            rows = part.stop - start
            stamps = sections.read("block.changed_seq", rows, start=start, buffer="piece")
            due[part] |= stamps > max(self._published, 0)
            np.greater(stamps, max(published, 0), out=moving[part])
            ticket = sections.read("block.evict_ticket", rows, start=start, buffer="piece")
            np.greater_equal(ticket, 0, out=ticketed[part])
            here = np.flatnonzero(due[part] & ticketed[part])
            listed.append(here + start)
            tickets.append(ticket[here])
        return due, moving, ticketed, np.concatenate(listed).astype(np.int32), np.concatenate(tickets)

    def _share(self, size: int, turn: int) -> slice:
        """The part of a section whose turn it is, whatever the stamps say; all of it in the first audit."""
        if self._published < 0:
            return slice(0, size)
        length = max(-(-size // AUDITS_PER_ROUND), WHOLE_UP_TO)
        first = length * (turn % -(-size // length))
        return slice(first, min(first + length, size))


def _pieces(share: slice) -> Iterator[I64]:
    """The numbers of a share, in pieces."""
    for start in range(share.start, share.stop, PIECE):
        yield np.arange(start, min(start + PIECE, share.stop))


def _unanswered(entries: I32, slots: I64, state: NDArray[np.uint8], index_slot: I32) -> I64:
    """Those of some index slots that name a block which does not name them, or is free."""
    named = entries[slots]
    inside = (named >= 0) & (named < len(state))
    slots, named = slots[inside], named[inside]
    unanswered: I64 = slots[(index_slot[named] != slots) | (state[named] == int(BlockState.FREE))]
    return unanswered


def _other(entries: I32, slots: I64, keys: U64, capacity: int, hash_of: Callable[[I32], U64]) -> I64:
    """Those of some index slots, with these keys, that name a block of another hash."""
    named = entries[slots]
    inside = (named >= 0) & (named < capacity)
    other: I64 = slots[inside][hash_of(named[inside]) != keys[inside]]
    return other


def _answered(entries: I32, slots: I32, blocks: I64) -> Mask:
    """Which blocks are named by the index slot that they name; those that name none are."""
    answered = slots < 0
    claims = np.flatnonzero(~answered & (slots < len(entries)))
    answered[claims] = entries[slots[claims]] == blocks[claims]
    return answered


def _borne_out(sections: Sections, control: Mapping[str, int], listed: I32, tickets: I64, damage: list[str]) -> Mask:
    """Which of the blocks `listed` own the eviction ring entry that their ticket names."""
    size = sections.head.sections["evict.ring"].shape[0]
    head, tail = control["evict_head"], control["evict_tail"]
    if not 0 <= head <= tail <= head + size:
        damage.append(f"evict_head={head}, evict_tail={tail} in a ring of {size}")
        return np.zeros(len(listed), np.bool_)
    first = head % size
    if first + (tail - head) <= size:
        ring = sections.read("evict.ring", tail - head, start=first)
    else:
        ring, first = sections.read("evict.ring"), 0
    inside = (tickets >= head) & (tickets < tail)
    theirs = inside.copy()
    theirs[inside] = ring[tickets[inside] % size - first] == listed[inside]
    return theirs
