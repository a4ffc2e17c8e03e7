"""Block tables: which blocks a request's tokens lie in, in order, as chains of fixed chunks in the ledger's arena.

Owns `arena.*` and the slots' `table_blocks`, `first_chunk` and `last_chunk` of one cache group; counts no references.
A table entry is changed only after its block and its slot were stamped.
"""

from __future__ import annotations

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.errors import ArenaFull
from kvledger_engine.evict import Ids
from kvledger_engine.prefixkeys import Integers

_FREE_CHUNKS = CONTROL_INDEX["free_chunk_count"]
_NO_CHUNK = -1


class BlockTables:
    """The tables of one group, by request slot. Blocks named in calls that change a table must be stamped already."""

    def __init__(self, ledger: Ledger, group: int = 0) -> None:
        slots = ledger.slots
        self._ledger, self._control, self._arena = ledger, ledger.control, ledger.arena
        self._changed = slots.changed_seq
        self._length, self._first = slots.table_blocks[:, group], slots.first_chunk[:, group]
        self._last = slots.last_chunk[:, group]
        self._width = ledger.limits.chunk_blocks
        self._columns = np.arange(self._width)

    # -- read -----------------------------------------------------------------------------------------------------

    def lengths(self, slots: Integers) -> I32:
        """Blocks in each slot's table."""
        return self._length[slots]

    def length(self, slot: int) -> int:
        """Blocks in one slot's table."""
        return int(self._length[slot])

    def gather(self, slots: Integers) -> tuple[I32, I32]:
        """All tables in slot order as (blocks, offsets): table i is blocks[offsets[i]:offsets[i + 1]]."""
        lengths = self._length[slots].astype(np.intp)
        offsets = np.zeros(len(slots) + 1, np.int32)
        lengths.cumsum(out=offsets[1:], dtype=np.int32)
        chain, ends = self._chains(slots, (lengths + (self._width - 1)) // self._width)
        rows = self._arena.chunk[chain]
        # Every chunk is full but the last of a table.
        used = np.ones(rows.shape, np.bool_)
        held = lengths > 0
        used[ends[held] - 1] = self._columns <= (lengths[held, None] - 1) % self._width
        blocks: I32 = rows[used]
        return blocks, offsets

    def _chains(self, slots: Integers, counts: Ids) -> tuple[Ids, Ids]:
        """The chunks of all tables, one table after the other, `counts` of each; and where each table's end."""
        ends = counts.cumsum()
        starts = ends - counts
        chain = np.empty(int(counts.sum()), np.intp)
        rows, level = counts.nonzero()[0], 0
        at = self._first[slots[rows]]
        while len(rows):
            chain[starts[rows] + level] = at
            level += 1
            longer = counts[rows] > level
            rows, at = rows[longer], self._arena.next[at[longer]]
        return chain, ends

    def blocks_of(self, slot: int) -> I32:
        """One slot's table."""
        return self.gather(np.array([slot]))[0]

    def entries(self, slots: Integers, indexes: Integers) -> I32:
        """Block at table position `indexes` of each slot."""
        return self._arena.chunk[self._chunks_at(slots, indexes), indexes % self._width]

    def _chunks_at(self, slots: Integers, indexes: Integers) -> I32:
        """The chunk that holds position `indexes` of each slot's table; the last one is found without a walk."""
        levels, last = indexes // self._width, self._last[slots]
        walked = levels != (self._length[slots] - 1) // self._width
        if not walked.any():
            return last
        chunks = np.where(walked, self._first[slots], last)
        ahead = (walked & (levels > 0)).nonzero()[0]
        depth = 0
        while len(ahead):
            chunks[ahead] = self._arena.next[chunks[ahead]]
            depth += 1
            ahead = ahead[levels[ahead] > depth]
        return chunks

    # -- change ---------------------------------------------------------------------------------------------------

    def check(self, slots: Integers, counts: Integers) -> Integers:
        """Chunks each slot's table needs to grow by its count. Raises `ArenaFull`, counted as an overflow."""
        beyond = counts - -self._length[slots] % self._width  # what the last chunk has no room for
        needed: Integers = np.maximum(beyond + (self._width - 1), 0) // self._width
        total, available = int(needed.sum()), int(self._control[_FREE_CHUNKS])
        if total > available:
            self._ledger.overflow()
            raise ArenaFull(total, available)
        return needed

    def append(self, slots: Integers, counts: Integers, blocks: Integers, chunks: Integers) -> None:
        """Lengthen the tables of distinct slots: the first counts[0] of `blocks` go to slots[0], and so on.

        `chunks` is what `check` answered for the same slots and counts.
        """
        self._changed[slots] = self._ledger.seq_value
        length = self._length[slots]
        rows, position = self._positions(length, counts)
        homes = self._last[slots][rows]
        if chunks.any():
            fresh, starts = self._link(slots, chunks)
            ordinal = position // self._width - ((length + (self._width - 1)) // self._width)[rows]
            homes = np.where(ordinal < 0, homes, fresh[np.maximum(starts[rows] + ordinal, 0)])
        self._arena.chunk[homes, position % self._width] = blocks
        # The length last: until then a reader does not look at the new entries.
        self._length[slots] = length + counts

    @staticmethod
    def _positions(length: Integers, counts: Integers) -> tuple[Ids, Integers]:
        """For each appended block the row of its slot and its position in the table."""
        if (counts == 1).all():
            return np.arange(len(counts)), length
        rows = np.arange(len(counts)).repeat(counts)
        ramp = np.arange(len(rows)) - (counts.cumsum() - counts)[rows]
        return rows, length[rows] + ramp

    def _link(self, slots: Integers, new: Integers) -> tuple[I32, Integers]:
        """Take chunks and hang new[i] of them on the table of slots[i]; returns them and where each slot's begin."""
        left = int(self._control[_FREE_CHUNKS]) - int(new.sum())
        fresh: I32 = self._arena.free_chunks[left : left + int(new.sum())][::-1].copy()
        self._control[_FREE_CHUNKS] = left
        starts = new.cumsum() - new
        grown = new.nonzero()[0]
        first, last = fresh[starts[grown]], fresh[starts[grown] + new[grown] - 1]
        self._arena.next[fresh[:-1]] = fresh[1:]
        self._arena.next[last] = _NO_CHUNK
        longer = self._last[slots[grown]] != _NO_CHUNK
        self._arena.next[self._last[slots[grown[longer]]]] = first[longer]
        self._first[slots[grown[~longer]]] = first[~longer]
        self._last[slots[grown]] = last
        return fresh, starts

    def replace(self, slots: Integers, indexes: Integers, blocks: Integers) -> None:
        """Put other blocks at position `indexes` of each slot's table."""
        self._changed[slots] = self._ledger.seq_value
        self._arena.chunk[self._chunks_at(slots, indexes), indexes % self._width] = blocks

    def clear(self, slot: int) -> None:
        """Empty a table and give its chunks back."""
        self._changed[slot] = self._ledger.seq_value
        chunks, chunk = [], int(self._first[slot])
        while chunk != _NO_CHUNK:
            chunks.append(chunk)
            chunk = int(self._arena.next[chunk])
        self._length[slot] = 0
        self._first[slot] = self._last[slot] = _NO_CHUNK
        free = int(self._control[_FREE_CHUNKS])
        self._arena.free_chunks[free : free + len(chunks)] = np.array(chunks[::-1], np.int32)
        self._control[_FREE_CHUNKS] = free + len(chunks)
