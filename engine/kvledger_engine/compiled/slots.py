"""What happens to the blocks of slots: they grow, tokens are stored in them, they are given back.

A slot's tables, one in each cache group, all reach up to the same token. Owns the slots' computed_tokens and
peak_blocks as they change here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32, I64
from kvledger_engine.compiled import pool, tables
from kvledger_engine.compiled.arrays import BLOCK_TOKENS, CHUNK_BLOCKS, GROUPS, Arrays, unpack
from kvledger_engine.compiled.kernel import helper, kernel
from kvledger_engine.compiled.lifetimes import count
from kvledger_engine.compiled.order import settle

_FREE_CHUNKS = CONTROL_INDEX["free_chunk_count"]
NOT_ENOUGH_BLOCKS, ARENA_FULL, SHARED_WRITES = -1, -2, -3


@helper
def missing(arrays: Arrays, slot: int, tokens_after: int) -> int:
    """Blocks that each table of a slot lacks to hold so many tokens."""
    size, first = arrays.settings[BLOCK_TOKENS], slot * arrays.settings[GROUPS]
    begun = arrays.table_blocks[first] + arrays.skipped[first]
    # Of most slots the last block has room, and a division takes longer than all the rest.
    if tokens_after <= begun * size:
        return 0
    return (tokens_after + size - 1) // size - begun


@kernel("int64(i8[::1], i4[::1], i4[::1], i4[::1])")
def lacking(handle: Any, slots: I32, tokens_after: I32, found: I32) -> int:
    """`missing` of every slot, to `found` I32[n]. Returns how many would write into a block that may be shared."""
    arrays = unpack(handle)
    shared = 0
    for row in range(len(slots)):
        found[row] = missing(arrays, slots[row], tokens_after[row])
        shared += _writes_shared(arrays, slots[row], tokens_after[row])
    return shared


@helper
def _writes_shared(arrays: Arrays, slot: int, tokens_after: int) -> bool:
    computed = arrays.computed_tokens[slot]
    return arrays.own_from_token[slot] > computed and tokens_after > computed


@kernel("UniTuple(i8, 3)(i8[::1], i4[::1], i4[::1], b1)")
def grow(handle: Any, slots: I32, tokens_after: I32, copies_made: bool) -> tuple[int, int, int]:
    """Take blocks so that each of the distinct `slots` I32[n] can hold its tokens_after I32[n] tokens.

    Returns (blocks taken, slots that held none before, 0), both named in `scratch` in this order, or, with nothing
    changed: (NOT_ENOUGH_BLOCKS or ARENA_FULL, needed, available); (SHARED_WRITES, blocks, chunks) needed besides the
    copies of shared blocks about to be written, unless `copies_made`.
    """
    arrays = unpack(handle)
    groups, width = arrays.settings[GROUPS], arrays.settings[CHUNK_BLOCKS]
    blocks, chunks, shared = 0, 0, False
    for row in range(len(slots)):
        further = missing(arrays, slots[row], tokens_after[row])
        shared |= _writes_shared(arrays, slots[row], tokens_after[row])
        if further:
            blocks += groups * further
            for table in range(slots[row] * groups, (slots[row] + 1) * groups):
                chunks += tables.chunks_needed(arrays.table_blocks[table], further, width)
    if shared and not copies_made:
        return SHARED_WRITES, blocks, chunks
    if blocks > pool.available(arrays):
        return NOT_ENOUGH_BLOCKS, blocks, pool.available(arrays)
    if chunks > arrays.control[_FREE_CHUNKS]:
        return ARENA_FULL, chunks, arrays.control[_FREE_CHUNKS]
    if blocks == 0:
        return 0, 0, 0
    return blocks, _extend(arrays, slots, tokens_after, blocks), 0


@helper
def _extend(arrays: Arrays, slots: I32, tokens_after: I32, blocks: int) -> int:
    """Take so many blocks for those slots that lack some; returns how many held none before."""
    group_count, taken = arrays.settings[GROUPS], arrays.scratch[:blocks]
    owners, columns, groups = np.empty(blocks, np.uint64), np.empty(blocks, np.int16), np.empty(blocks, np.uint8)
    at = 0
    for row in range(len(slots)):
        slot = slots[row]
        further = missing(arrays, slot, tokens_after[row])
        for group in range(group_count):
            for _ in range(further):
                owners[at], columns[at], groups[at] = arrays.serial[slot], arrays.slot_tenant[slot], group
                at += 1
    pool.seize(arrays, taken)
    pool.hold(arrays, taken, owners, columns, groups)
    at, begun = 0, 0
    for row in range(len(slots)):
        slot = slots[row]
        further = missing(arrays, slot, tokens_after[row])
        if further:
            stamp(arrays, slot)
            for table in range(slot * group_count, (slot + 1) * group_count):
                for _ in range(further):
                    tables.push(arrays, table, taken[at])
                    at += 1
            begun += note_peak(arrays, slot, blocks + begun)
    return begun


@helper
def stamp(arrays: Arrays, slot: int) -> None:
    """A slot is about to change."""
    arrays.slot_changed[slot] = arrays.seq[0]
    settle()


@helper
def note_peak(arrays: Arrays, slot: int, at: int) -> int:
    """A slot's tables have become longer: 1, and the slot at `scratch[at]`, if it held no block ever before, else 0."""
    groups, held, before = arrays.settings[GROUPS], 0, arrays.peak_blocks[slot]
    for table in range(slot * groups, (slot + 1) * groups):
        held += arrays.table_blocks[table]
    arrays.peak_blocks[slot] = max(before, held)
    if before == 0 and held > 0:
        arrays.scratch[at] = slot
        return 1
    return 0


@kernel("int64(i8[::1], i8[::1], i8[::1], i8[::1])")
def attach(handle: Any, slots: I64, counts: I64, blocks: I64) -> int:
    """Put blocks at the ends of the tables of distinct `slots`: counts[0] of them in the first one's table, and so on.

    `counts` I64[slots × groups]; there must be chunks. Returns how many slots held none before; they begin `scratch`.
    """
    arrays = unpack(handle)
    groups, at, begun = arrays.settings[GROUPS], 0, 0
    for row in range(len(slots)):
        slot = slots[row]
        stamp(arrays, slot)
        for group in range(groups):
            for _ in range(counts[row * groups + group]):
                tables.push(arrays, slot * groups + group, blocks[at])
                at += 1
        begun += note_peak(arrays, slot, begun)
    return begun


@kernel("int64(i8[::1], i4[::1], i4[::1])")
def commit(handle: Any, slots: I32, computed_tokens: I32) -> int:
    """The keys and values of the first computed_tokens[i] tokens of distinct slots[i] are stored now, I32[n] both.

    Returns how many blocks became full: they begin `scratch`, as rows of 2 + groups for `chains.publish`.
    """
    arrays = unpack(handle)
    size, groups, width = arrays.settings[BLOCK_TOKENS], arrays.settings[GROUPS], arrays.settings[CHUNK_BLOCKS]
    full, stride = 0, 2 + groups
    for row in range(len(slots)):
        slot, after = slots[row], computed_tokens[row]
        begin, end = _blocks_written(arrays, slot, after)
        for group in range(groups):
            table = slot * groups + group
            skipped, at = arrays.skipped[table], full
            home = tables.chunk_at(arrays, table, begin - skipped) if begin < end else 0
            for number in range(begin, end):
                entry = number - skipped
                if entry % width == 0 and number > begin:
                    home = arrays.next_chunk[home]
                block, held = arrays.chunk[home, entry % width], min(after - number * size, size)
                arrays.changed_seq[block] = arrays.seq[0]
                settle()
                arrays.filled_tokens[block] = held
                if held == size:
                    arrays.scratch[at * stride] = slot
                    arrays.scratch[at * stride + 1] = number
                    arrays.scratch[at * stride + 2 + group] = block
                    at += 1
            if group == groups - 1:
                full = at
        arrays.computed_tokens[slot] = after
    return full


@helper
def _blocks_written(arrays: Arrays, slot: int, after: int) -> tuple[int, int]:
    """Numbers of the first block that tokens are stored in once a slot has `after` of them, and of that past the last.

    Nearly always it is the last block of its tables alone, which is found without a division.
    """
    size, table, before = arrays.settings[BLOCK_TOKENS], slot * arrays.settings[GROUPS], arrays.computed_tokens[slot]
    last = int(arrays.table_blocks[table] + arrays.skipped[table] - 1)
    if last * size <= before < after <= (last + 1) * size:
        return last, last + 1
    return before // size, (after - 1) // size + 1


@kernel("UniTuple(i8, 2)(i8[::1], i8)")
def vacate(handle: Any, slot: int) -> tuple[int, int]:
    """Empty the tables of a slot, whose references must be given back next. Returns (blocks, those of use to others).

    The blocks begin `scratch`, stamped, the tail first. Of use are those that somebody else holds, or that are indexed.
    """
    arrays = unpack(handle)
    groups, width, blocks, kept, near = arrays.settings[GROUPS], arrays.settings[CHUNK_BLOCKS], arrays.scratch, 0, 0
    total = 0
    for table in range(slot * groups, (slot + 1) * groups):
        total += arrays.table_blocks[table]
    at = total
    for table in range(slot * groups, (slot + 1) * groups):
        left, home = arrays.table_blocks[table], arrays.first_chunk[table]
        while left > 0:
            for number in range(min(left, width)):
                at -= 1
                blocks[at] = arrays.chunk[home, number]
                arrays.changed_seq[blocks[at]] = arrays.seq[0]
            left -= width
            home = arrays.next_chunk[home]
    stamp(arrays, slot)
    arrays.computed_tokens[slot] = arrays.own_from_token[slot] = 0
    for number in range(total):
        block = blocks[number]
        near = count(arrays, slot, block, near)
        kept += arrays.ref_count[block] >= 2 or arrays.index_slot[block] >= 0
    for table in range(slot * groups, (slot + 1) * groups):
        tables.clear(arrays, table)
        arrays.skipped[table] = 0
    return total, kept
