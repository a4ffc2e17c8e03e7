"""Block tables: which blocks a request's tokens lie in, in order, as chains of fixed chunks in the ledger's arena.

Owns `arena.*` and the slots' `table_blocks`, `first_chunk` and `last_chunk`; counts no references. Table t is that of
slot t // groups in group t % groups: of a slot, where there is one group. A table entry is changed only after its block
and its slot were stamped.
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
    """All tables, by number. Blocks named in calls that change a table must be stamped already."""

    def __init__(self, ledger: Ledger) -> None:
        slots = ledger.slots
        self._ledger, self._control, self._arena = ledger, ledger.control, ledger.arena
        self._changed = slots.changed_seq
        self._groups = len(ledger.limits.groups)
        self._length, self._first = slots.table_blocks.reshape(-1), slots.first_chunk.reshape(-1)
        self._last = slots.last_chunk.reshape(-1)
        self._width = ledger.limits.chunk_blocks
        self._columns = np.arange(self._width)

    # -- read -----------------------------------------------------------------------------------------------------

    def lengths(self, tables: Integers) -> I32:
        """Blocks in each table."""
        return self._length[tables]

    def length(self, table: int) -> int:
        """Blocks in one table."""
        return int(self._length[table])

    def gather(self, tables: Integers) -> tuple[I32, I32]:
        """Tables in the order given as (blocks, offsets): table i is blocks[offsets[i]:offsets[i + 1]]."""
        lengths = self._length[tables].astype(np.intp)
        offsets = np.zeros(len(tables) + 1, np.int32)
        lengths.cumsum(out=offsets[1:], dtype=np.int32)
        chain, ends = self._chains(tables, (lengths + (self._width - 1)) // self._width)
        rows = self._arena.chunk[chain]
        # Every chunk is full but the last of a table.
        used = np.ones(rows.shape, np.bool_)
        held = lengths > 0
        used[ends[held] - 1] = self._columns <= (lengths[held, None] - 1) % self._width
        blocks: I32 = rows[used]
        return blocks, offsets

    def _chains(self, tables: Integers, counts: Ids) -> tuple[Ids, Ids]:
        """The chunks of all tables, one table after the other, `counts` of each; and where each table's end."""
        ends = counts.cumsum()
        starts = ends - counts
        chain = np.empty(int(counts.sum()), np.intp)
        rows, level = counts.nonzero()[0], 0
        at = self._first[tables[rows]]
        while len(rows):
            chain[starts[rows] + level] = at
            level += 1
            longer = counts[rows] > level
            rows, at = rows[longer], self._arena.next[at[longer]]
        return chain, ends

    def blocks_of(self, table: int) -> I32:
        """One table."""
        return self.gather(np.array([table]))[0]

    def entries(self, tables: Integers, indexes: Integers) -> I32:
        """Block at position `indexes` of each table."""
        return self._arena.chunk[self._chunks_at(tables, indexes), indexes % self._width]

    def _chunks_at(self, tables: Integers, indexes: Integers) -> I32:
        """The chunk that holds position `indexes` of each table; the last one is found without a walk."""
        levels, last = indexes // self._width, self._last[tables]
        walked = levels != (self._length[tables] - 1) // self._width
        if not walked.any():
            return last
        chunks = np.where(walked, self._first[tables], last)
        ahead = (walked & (levels > 0)).nonzero()[0]
        depth = 0
        while len(ahead):
            chunks[ahead] = self._arena.next[chunks[ahead]]
            depth += 1
            ahead = ahead[levels[ahead] > depth]
        return chunks

    # -- change ---------------------------------------------------------------------------------------------------

    def _stamp(self, tables: Integers | int) -> None:
        self._changed[tables if self._groups == 1 else tables // self._groups] = self._ledger.seq_value

    def check(self, tables: Integers, counts: Integers) -> Integers:
        """Chunks each table needs to grow by its count. Raises `ArenaFull`, counted as an overflow."""
        beyond = counts - -self._length[tables] % self._width  # what the last chunk has no room for
        needed: Integers = np.maximum(beyond + (self._width - 1), 0) // self._width
        total, available = int(needed.sum()), int(self._control[_FREE_CHUNKS])
        if total > available:
            self._ledger.overflow()
            raise ArenaFull(total, available)
        return needed

    def append(self, tables: Integers, counts: Integers, blocks: Integers, chunks: Integers) -> None:
        """Lengthen distinct tables: the first counts[0] of `blocks` go to tables[0], and so on.

        `chunks` is what `check` answered for the same tables and counts.
        """
        self._stamp(tables)
        length = self._length[tables]
        rows, position = self._positions(length, counts)
        homes = self._last[tables][rows]
        if chunks.any():
            fresh, starts = self._link(tables, chunks)
            ordinal = position // self._width - ((length + (self._width - 1)) // self._width)[rows]
            homes = np.where(ordinal < 0, homes, fresh[np.maximum(starts[rows] + ordinal, 0)])
        self._arena.chunk[homes, position % self._width] = blocks
        # The length last: until then a reader does not look at the new entries.
        self._length[tables] = length + counts

    @staticmethod
    def _positions(length: Integers, counts: Integers) -> tuple[Ids, Integers]:
        """For each appended block the row of its table and its position in it."""
        if (counts == 1).all():
            return np.arange(len(counts)), length
        rows = np.arange(len(counts)).repeat(counts)
        ramp = np.arange(len(rows)) - (counts.cumsum() - counts)[rows]
        return rows, length[rows] + ramp

    def _link(self, tables: Integers, new: Integers) -> tuple[I32, Integers]:
        """Take chunks and hang new[i] of them on tables[i]; returns them and where each table's begin."""
        left = int(self._control[_FREE_CHUNKS]) - int(new.sum())
        fresh: I32 = self._arena.free_chunks[left : left + int(new.sum())][::-1].copy()
        self._control[_FREE_CHUNKS] = left
        starts = new.cumsum() - new
        grown = new.nonzero()[0]
        first, last = fresh[starts[grown]], fresh[starts[grown] + new[grown] - 1]
        self._arena.next[fresh[:-1]] = fresh[1:]
        self._arena.next[last] = _NO_CHUNK
        longer = self._last[tables[grown]] != _NO_CHUNK
        self._arena.next[self._last[tables[grown[longer]]]] = first[longer]
        self._first[tables[grown[~longer]]] = first[~longer]
        self._last[tables[grown]] = last
        return fresh, starts

    def replace(self, tables: Integers, indexes: Integers, blocks: Integers) -> None:
        """Put other blocks at position `indexes` of each table."""
        self._stamp(tables)
        self._arena.chunk[self._chunks_at(tables, indexes), indexes % self._width] = blocks

    def drop(self, tables: Integers, counts: Integers, after: Integers | int = 0) -> None:
        """Shorten distinct tables by the `counts` entries that follow their first `after`; what comes then moves up.

        Something is left of each.

        All blocks of these tables must be stamped: for whoever reads now, each of them changes its place.
        """
        self._stamp(tables)
        before = self._length[tables].astype(np.intp)
        left = before - counts
        blocks, offsets = self.gather(tables)
        rows = np.arange(len(tables)).repeat(left)
        position = np.arange(len(rows)) - (left.cumsum() - left)[rows]
        chain, ends = self._chains(tables, self._chunk_counts(before))
        starts = ends - self._chunk_counts(before)
        moved = position >= np.broadcast_to(after, before.shape)[rows]
        kept = blocks[offsets[rows] + counts[rows] * moved + position]
        self._arena.chunk[chain[starts[rows] + position // self._width], position % self._width] = kept
        self._length[tables] = left
        self._unlink(tables, chain, starts + self._chunk_counts(left), ends)

    def _chunk_counts(self, lengths: Ids) -> Ids:
        counts: Ids = (lengths + (self._width - 1)) // self._width
        return counts

    def _unlink(self, tables: Integers, chain: Ids, begins: Ids, ends: Ids) -> None:
        """Give back the chunks chain[begins[i]:ends[i]] of each table, which keeps some before them."""
        surplus = ends - begins
        cut = surplus.nonzero()[0]
        if not len(cut):
            return
        last = chain[begins[cut] - 1]
        self._arena.next[last], self._last[tables[cut]] = _NO_CHUNK, last
        rows = np.arange(len(tables)).repeat(surplus)
        chunks = chain[begins[rows] + np.arange(len(rows)) - (surplus.cumsum() - surplus)[rows]]
        free = int(self._control[_FREE_CHUNKS])
        self._arena.free_chunks[free : free + len(chunks)] = chunks[::-1]
        self._control[_FREE_CHUNKS] = free + len(chunks)

    def clear(self, table: int) -> None:
        """Empty a table and give its chunks back."""
        self._stamp(table)
        chunks, chunk = [], int(self._first[table])
        while chunk != _NO_CHUNK:
            chunks.append(chunk)
            chunk = int(self._arena.next[chunk])
        self._length[table] = 0
        self._first[table] = self._last[table] = _NO_CHUNK
        free = int(self._control[_FREE_CHUNKS])
        self._arena.free_chunks[free : free + len(chunks)] = np.array(chunks[::-1], np.int32)
        self._control[_FREE_CHUNKS] = free + len(chunks)
