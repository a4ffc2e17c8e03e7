"""Block tables: chains of fixed chunks in the ledger's arena. A slot is stamped before its table changes.

Table t is that of slot t // groups in group t % groups. Owns `arena.*` and the slots' table_blocks, first_chunk and
last_chunk. Blocks named here are stamped already.
"""

from __future__ import annotations

from typing import Any

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32, I64
from kvledger_engine.compiled.arrays import CHUNK_BLOCKS, GROUPS, Arrays, unpack
from kvledger_engine.compiled.kernel import helper, kernel
from kvledger_engine.compiled.order import settle

_FREE_CHUNKS = CONTROL_INDEX["free_chunk_count"]
_NO_CHUNK = -1


@helper
def chunks_needed(length: int, further: int, width: int) -> int:
    """Chunks that a table of `length` blocks takes to hold `further` more."""
    return (length + further + width - 1) // width - (length + width - 1) // width


@helper
def push(arrays: Arrays, table: int, block: int) -> None:
    """Lengthen the table of a stamped slot by one block. There must be a chunk for it."""
    width, length = arrays.settings[CHUNK_BLOCKS], arrays.table_blocks[table]
    if length % width == 0:
        _link(arrays, table)
    arrays.chunk[arrays.last_chunk[table], length % width] = block
    # The length last: until then a reader does not look at the new entry.
    settle()
    arrays.table_blocks[table] = length + 1


@helper
def _link(arrays: Arrays, table: int) -> None:
    left = arrays.control[_FREE_CHUNKS] - 1
    chunk, last = arrays.free_chunks[left], arrays.last_chunk[table]
    arrays.control[_FREE_CHUNKS] = left
    arrays.next_chunk[chunk] = _NO_CHUNK
    if last == _NO_CHUNK:
        arrays.first_chunk[table] = chunk
    else:
        arrays.next_chunk[last] = chunk
    arrays.last_chunk[table] = chunk


@helper
def chunk_at(arrays: Arrays, table: int, number: int) -> int:
    """The chunk with entry `number` of a table; the last one is found without a walk."""
    width, last = arrays.settings[CHUNK_BLOCKS], arrays.table_blocks[table] - 1
    level = number // width
    if number == last or level == last // width:
        return arrays.last_chunk[table]
    chunk = arrays.first_chunk[table]
    for _ in range(level):
        chunk = arrays.next_chunk[chunk]
    return chunk


@helper
def read(arrays: Arrays, table: int, blocks: I32, at: int) -> int:
    """Copy a table to blocks[at:]; returns its length."""
    width, chunk, length = arrays.settings[CHUNK_BLOCKS], arrays.chunk, arrays.table_blocks[table]
    left, home = length, arrays.first_chunk[table]
    while left > 0:
        used = min(left, width)
        # Slices from 0 on: a loop over them is a copy of many entries at once.
        source, target = chunk[home], blocks[at : at + used]
        for number in range(used):
            target[number] = source[number]
        at += used
        left -= width
        home = arrays.next_chunk[home]
    return length


@kernel("int64(i8[::1], i8[::1], i8[::1])")
def room(handle: Any, tables: I64, counts: I64) -> int:
    """Chunks that `tables` I64[n] need to grow by `counts` I64[n] blocks."""
    arrays = unpack(handle)
    needed = 0
    for row in range(len(tables)):
        needed += chunks_needed(arrays.table_blocks[tables[row]], counts[row], arrays.settings[CHUNK_BLOCKS])
    return needed


@kernel("void(i8[::1], i8[::1], i8[::1], i8[::1])")
def append(handle: Any, tables: I64, counts: I64, blocks: I64) -> None:
    """Lengthen distinct tables: the first counts[0] of `blocks` go to tables[0], and so on. There must be room."""
    arrays = unpack(handle)
    groups, at = arrays.settings[GROUPS], 0
    for row in range(len(tables)):
        arrays.slot_changed[tables[row] // groups] = arrays.seq[0]
        settle()
        for _ in range(counts[row]):
            push(arrays, tables[row], blocks[at])
            at += 1


@kernel("int64(i8[::1], i8[::1], i4[::1], i4[::1])")
def gather(handle: Any, tables: I64, blocks: I32, offsets: I32) -> int:
    """Tables in the order given: table i becomes blocks[offsets[i] : offsets[i + 1]], `offsets` I32[n + 1].

    Returns their length together; `blocks` must have room for it.
    """
    arrays = unpack(handle)
    offsets[0] = at = 0
    for row in range(len(tables)):
        at += read(arrays, tables[row], blocks, at)
        offsets[row + 1] = at
    return at


@kernel("void(i8[::1], i8[::1], i8[::1], i8[::1])")
def entries(handle: Any, tables: I64, numbers: I64, found: I64) -> None:
    """The block at position numbers[i] of tables[i], to `found` I64[n]."""
    arrays = unpack(handle)
    for row in range(len(tables)):
        home = chunk_at(arrays, tables[row], numbers[row])
        found[row] = arrays.chunk[home, numbers[row] % arrays.settings[CHUNK_BLOCKS]]


@kernel("void(i8[::1], i8[::1], i8[::1], i8[::1])")
def replace(handle: Any, tables: I64, numbers: I64, blocks: I64) -> None:
    """Put blocks[i] at position numbers[i] of tables[i]."""
    arrays = unpack(handle)
    for row in range(len(tables)):
        arrays.slot_changed[tables[row] // arrays.settings[GROUPS]] = arrays.seq[0]
        settle()
        home = chunk_at(arrays, tables[row], numbers[row])
        arrays.chunk[home, numbers[row] % arrays.settings[CHUNK_BLOCKS]] = blocks[row]


@kernel("void(i8[::1], i8[::1], i8[::1], i8[::1])")
def drop(handle: Any, tables: I64, counts: I64, after: I64) -> None:
    """Shorten distinct tables by the counts[i] entries behind their first after[i]; what comes then moves up.

    Something is left of each. All blocks of these tables must be stamped: whoever reads now finds none in its place.
    """
    arrays = unpack(handle)
    for row in range(len(tables)):
        arrays.slot_changed[tables[row] // arrays.settings[GROUPS]] = arrays.seq[0]
        settle()
        _drop(arrays, tables[row], counts[row], after[row])


@helper
def _drop(arrays: Arrays, table: int, count: int, after: int) -> None:
    width, chunk, left = arrays.settings[CHUNK_BLOCKS], arrays.chunk, arrays.table_blocks[table] - count
    source, target = arrays.first_chunk[table], arrays.first_chunk[table]
    for _ in range((after + count) // width):
        source = arrays.next_chunk[source]
    for _ in range(min(after, left - 1) // width):
        target = arrays.next_chunk[target]
    for number in range(after, left):
        chunk[target, number % width] = chunk[source, (number + count) % width]
        if (number + 1) % width == 0 and number + 1 < left:
            target = arrays.next_chunk[target]
        if (number + 1 + count) % width == 0:
            source = arrays.next_chunk[source]
    arrays.table_blocks[table] = left
    surplus = arrays.next_chunk[target]
    arrays.next_chunk[target] = _NO_CHUNK
    arrays.last_chunk[table] = target
    _give_back(arrays, surplus)


@helper
def _give_back(arrays: Arrays, chunk: int) -> None:
    """Put a chunk and those linked to it on the free stack, the last one first."""
    count, following = 0, chunk
    while following != _NO_CHUNK:
        count += 1
        following = arrays.next_chunk[following]
    free = arrays.control[_FREE_CHUNKS]
    for number in range(count):
        arrays.free_chunks[free + count - 1 - number] = chunk
        chunk = arrays.next_chunk[chunk]
    arrays.control[_FREE_CHUNKS] = free + count


@helper
def clear(arrays: Arrays, table: int) -> None:
    """Empty the table of a stamped slot and give its chunks back."""
    chunk = arrays.first_chunk[table]
    arrays.table_blocks[table] = 0
    arrays.first_chunk[table] = arrays.last_chunk[table] = _NO_CHUNK
    _give_back(arrays, chunk)


@kernel("void(i8[::1], i8)")
def empty(handle: Any, table: int) -> None:
    """Empty one table and give its chunks back."""
    arrays = unpack(handle)
    arrays.slot_changed[table // arrays.settings[GROUPS]] = arrays.seq[0]
    settle()
    clear(arrays, table)
