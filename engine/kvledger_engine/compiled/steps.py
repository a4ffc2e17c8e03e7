"""A step's arrays: what each sequence wants, the inputs and tables of its rows, and the tokens that were drawn."""

from __future__ import annotations

from typing import Any

from kvledger.views import I32
from kvledger_engine.compiled.arrays import GROUPS, unpack
from kvledger_engine.compiled.kernel import kernel
from kvledger_engine.compiled.tables import read


@kernel("UniTuple(i8, 2)(i8[::1], i4[::1], i4[:, ::1])")
def plan(handle: Any, slots: I32, rows: I32) -> tuple[int, int]:
    """What is left to compute of each of `slots` I32[n]: (the most of one, all together).

    `rows` I32[4, n] get the tokens in the cache, those to compute, the tokens of the sequence, and again these.
    """
    arrays = unpack(handle)
    most, total = 0, 0
    for row in range(len(slots)):
        slot = slots[row]
        length, start = arrays.prompt_tokens[slot] + arrays.output_tokens[slot], arrays.computed_tokens[slot]
        rows[0, row], rows[1, row], rows[2, row], rows[3, row] = start, length - start, length, length
        most = max(most, length - start)
        total += length - start
    return most, total


@kernel("int64(i8[::1], i4[::1], i4[::1], i4[::1], i4[:, ::1], i4[::1], i4[::1], i4[::1])")
def lay_out(
    handle: Any, slots: I32, starts: I32, counts: I32, tokens: I32, inputs: I32, blocks: I32, offsets: I32
) -> int:
    """The inputs and the tables of group 0 of a step's rows, row after row; all I32, `tokens` [slots, length].

    `inputs` are the counts[i] tokens of slots[i] from starts[i] on. Row i's table becomes
    blocks[offsets[i] : offsets[i + 1]]. Returns the room the tables need; where `blocks` has less, they are not
    complete.
    """
    arrays = unpack(handle)
    groups, needed, at = arrays.settings[GROUPS], 0, 0
    offsets[0] = 0
    for row in range(len(slots)):
        table = slots[row] * groups
        for position in range(starts[row], starts[row] + counts[row]):
            inputs[at] = tokens[slots[row], position]
            at += 1
        if needed + arrays.table_blocks[table] <= len(blocks):
            read(arrays, table, blocks, needed)
        needed += arrays.table_blocks[table]
        offsets[row + 1] = needed
    return needed


@kernel("int64(i8[::1], i4[::1], i4[::1], i4[:, ::1], i4[::1])")
def append(handle: Any, slots: I32, drawn: I32, tokens: I32, outputs: I32) -> int:
    """Append the token drawn[i] to the sequence in slots[i], now, I32[n] both; `tokens` I32[slots, length].

    `outputs` I32[n] get the tokens that each has generated. Returns how many have all that they asked for.
    """
    arrays = unpack(handle)
    full, now_ns = 0, arrays.now_ns[0]
    for row in range(len(slots)):
        slot = slots[row]
        generated = arrays.output_tokens[slot]
        tokens[slot, arrays.prompt_tokens[slot] + generated] = drawn[row]
        arrays.output_tokens[slot] = outputs[row] = generated + 1
        arrays.last_token_ns[slot] = now_ns
        full += generated + 1 >= arrays.max_tokens[slot]
    return full
