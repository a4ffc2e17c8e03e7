"""The prefix index: full blocks by the salted key of the prefix that ends in them.

Open addressing with linear probing in the ledger (`index.key`, `index.block`, back pointer `block.index_slot`); the
content that a key stands for is compared in private memory and never written anywhere. Owns no references.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_engine.evict import Ids
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.prefixkeys import U64, Integers

I64 = NDArray[np.int64]

_USED, _TOMBSTONES = CONTROL_INDEX["index_used"], CONTROL_INDEX["index_tombstones"]
_NEVER, _REMOVED = -1, -2
ROOT = 0
"""Content id of the empty prefix."""


class PrefixIndex:
    """Which block holds which prefix.

    Every indexed block has a content id (monotone, never used twice) and remembers its tokens, its salt and the content
    id of the block before it: two prefixes are equal when all blocks are equal and chained by content id.
    """

    def __init__(self, ledger: Ledger, *, block_size_tokens: int, faults: FaultPlan | None = None) -> None:
        self._ledger, self._control, self._blocks = ledger, ledger.control, ledger.blocks
        self._key, self._block = ledger.index.key, ledger.index.block
        self._mask = len(self._key) - 1
        self._faults = faults
        capacity = ledger.limits.capacity_blocks
        self._tokens = np.zeros((capacity, block_size_tokens), np.int32)
        self._salt = np.zeros(capacity, np.uint64)
        self._parent = np.zeros(capacity, np.int64)
        self._content = np.zeros(capacity, np.int64)  # 0: holds nothing that is indexed
        self._next_content = ROOT + 1

    # -- look-up --------------------------------------------------------------------------------------------------

    def chain(self, keys: U64, tokens: Integers, salt: int) -> Ids:
        """The blocks that hold the longest indexed prefix of `tokens`, int[blocks, block_size]."""
        salts = np.full(len(keys), salt, np.uint64)
        blocks = self.find(keys, tokens, salts, None)
        missing = (blocks < 0).nonzero()[0]
        blocks = blocks[: missing[0] if len(missing) else len(blocks)]
        while len(wrong := (self._parent[blocks] != self._parents_of(blocks)).nonzero()[0]):
            # Same tokens after another prefix: rare, so the one row is looked up again with its parent known.
            row = slice(int(wrong[0]), int(wrong[0]) + 1)
            right = self.find(keys[row], tokens[row], salts[row], self._parents_of(blocks)[row])
            if right[0] < 0:
                return blocks[: row.start]
            blocks[row] = right
        return blocks

    def _parents_of(self, chain: Ids) -> I64:
        parents = np.empty(len(chain), np.int64)
        parents[:1] = ROOT
        parents[1:] = self._content[chain[:-1]]
        return parents

    def find(self, keys: U64, tokens: Integers, salts: U64, parents: I64 | None) -> Ids:
        """For each row the indexed block of that key and content, -1 if there is none; `parents` None = any parent."""
        found = np.full(len(keys), -1, np.intp)
        rows = np.arange(len(keys))
        slots = (keys & np.uint64(self._mask)).astype(np.intp)
        while len(rows):
            blocks = self._block[slots]
            candidates = ((self._key[slots] == keys[rows]) & (blocks >= 0)).nonzero()[0]
            open_ = blocks != _NEVER
            if len(candidates):
                hits = candidates[self._equal(blocks[candidates], rows[candidates], tokens, salts, parents)]
                found[rows[hits]] = blocks[hits]
                open_[hits] = False
            rows, slots = rows[open_], (slots[open_] + 1) & self._mask
        return found

    def _equal(
        self, blocks: Integers, rows: Ids, tokens: Integers, salts: U64, parents: I64 | None
    ) -> NDArray[np.bool_]:
        equal: NDArray[np.bool_] = (self._content[blocks] != 0) & (self._salt[blocks] == salts[rows])
        equal &= (self._tokens[blocks] == tokens[rows]).all(axis=1)
        if parents is not None:
            equal &= self._parent[blocks] == parents[rows]
        return equal

    def contents_of(self, blocks: Ids) -> I64:
        """Content ids of indexed blocks."""
        return self._content[blocks]

    # -- change ---------------------------------------------------------------------------------------------------

    def register(
        self, keys: U64, tokens: Integers, salts: U64, blocks: Ids, starts: Ids, parents: I64
    ) -> tuple[Ids, I64]:
        """Index full, stamped blocks; content that is indexed already stays with the block that has it.

        Sequence i is rows starts[i]:starts[i + 1] (the last one ends with the rows); its first row follows the content
        `parents[i]`. Returns the rows that are indexed now, and the content id of every row.
        """
        if len(starts) > 1 and _has_duplicates(keys):
            # Perhaps the same content twice in one batch: the second must find the first one's entry.
            return self._register_in_turn(keys, tokens, salts, blocks, starts, parents)
        contents = self._follow(keys, tokens, salts, starts, parents)
        fresh = (contents == 0).nonzero()[0]
        contents[fresh] = np.arange(self._next_content, self._next_content + len(fresh))
        self._next_content += len(fresh)
        before = np.empty_like(contents)
        before[1:] = contents[:-1]
        before[starts] = parents
        self._insert(keys[fresh], tokens[fresh], salts[fresh], blocks[fresh], before[fresh], contents[fresh])
        return fresh, contents

    def _register_in_turn(
        self, keys: U64, tokens: Integers, salts: U64, blocks: Ids, starts: Ids, parents: I64
    ) -> tuple[Ids, I64]:
        done = []
        first = np.zeros(1, np.intp)
        for i, (a, b) in enumerate(pairwise([*starts.tolist(), len(keys)])):
            rows, contents = self.register(keys[a:b], tokens[a:b], salts[a:b], blocks[a:b], first, parents[i : i + 1])
            done.append((rows + a, contents))
        return np.concatenate([rows for rows, _ in done]), np.concatenate([contents for _, contents in done])

    def _follow(self, keys: U64, tokens: Integers, salts: U64, starts: Ids, parents: I64) -> I64:
        """Content ids of the leading rows of each sequence that are indexed already, 0 for the rest."""
        contents = np.zeros(len(keys), np.int64)
        rows, ends = starts, np.concatenate((starts[1:], [len(keys)]))
        while len(rows):
            found = self.find(keys[rows], tokens[rows], salts[rows], parents)
            on = (found >= 0).nonzero()[0]
            parents = self._content[found[on]]
            contents[rows[on]] = parents
            rows, ends = rows[on] + 1, ends[on]
            inside = rows < ends
            rows, ends, parents = rows[inside], ends[inside], parents[inside]
        return contents

    def attach(self, keys: U64, tokens: Integers, salts: U64, blocks: Ids, parents: I64) -> Ids:
        """Index full, stamped blocks of other groups beside the contents `parents` that they hold too, no two alike.

        Returns the rows that are indexed now; where a group has a block for that content already, it stays.
        """
        fresh: Ids = (self.find(keys, tokens, salts, parents) < 0).nonzero()[0]
        contents = np.arange(self._next_content, self._next_content + len(fresh))
        self._next_content += len(fresh)
        self._insert(keys[fresh], tokens[fresh], salts[fresh], blocks[fresh], parents[fresh], contents)
        return fresh

    def _insert(self, keys: U64, tokens: Integers, salts: U64, blocks: Ids, parents: I64, contents: I64) -> None:
        self._tokens[blocks], self._salt[blocks] = tokens, salts
        self._parent[blocks], self._content[blocks] = parents, contents
        self._blocks.prefix_hash[blocks] = keys
        self._blocks.index_slot[blocks] = self._place(keys, blocks)

    def _place(self, keys: U64, blocks: Ids) -> Ids:
        """Store distinct blocks under their keys; returns their slots."""
        placed = np.empty(len(keys), np.intp)
        rows = np.arange(len(keys))
        slots = (keys & np.uint64(self._mask)).astype(np.intp)
        while len(rows):
            before = self._block[slots]
            vacant = (before < 0).nonzero()[0]
            self._block[slots[vacant]] = blocks[rows[vacant]]
            # Of several rows that wanted one slot the last store stands; the others go on.
            won = vacant[self._block[slots[vacant]] == blocks[rows[vacant]]]
            self._key[slots[won]] = keys[rows[won]]
            placed[rows[won]] = slots[won]
            self._control[_USED] += len(won)
            self._control[_TOMBSTONES] -= np.count_nonzero(before[won] == _REMOVED)
            lost = np.ones(len(rows), np.bool_)
            lost[won] = False
            rows, slots = rows[lost], (slots[lost] + 1) & self._mask
        return placed

    def remove(self, blocks: Ids) -> None:
        """Forget stamped, indexed blocks: their content is about to be lost."""
        slots = self._blocks.index_slot[blocks].astype(np.intp)
        self._content[blocks] = 0
        if self._faults is not None:
            stale = self._faults.strikes(FaultKind.STALE_PREFIX_ENTRY, blocks, self._ledger.now_ns)
            slots = slots if stale is None else np.delete(slots, stale)
        self._block[slots] = _REMOVED
        self._blocks.index_slot[blocks] = -1
        self._blocks.prefix_hash[blocks] = 0
        self._control[_USED] -= len(slots)
        self._control[_TOMBSTONES] += len(slots)
        if int(self._control[_TOMBSTONES]) > len(self._key) // 4:
            self._rebuild()

    def _rebuild(self) -> None:
        """Place every entry anew, without tombstones, so that probes stay short."""
        slots = (self._block >= 0).nonzero()[0]
        keys, blocks = self._key[slots], self._block[slots].astype(np.intp)
        owned = self._blocks.index_slot[blocks] == slots
        self._ledger.stamp(blocks)
        self._block[:] = _NEVER
        self._control[_USED], self._control[_TOMBSTONES] = 0, 0
        placed = self._place(keys, blocks)
        self._blocks.index_slot[blocks[owned]] = placed[owned]


def _has_duplicates(keys: U64) -> bool:
    ordered = np.sort(keys)
    return bool((ordered[1:] == ordered[:-1]).any())
