"""Prefix chains: how many blocks of a prompt are cached, and what becomes of blocks that fill.

Group 0 is the spine; blocks of other groups hang on its contents. Owns the running key sum and the last content id of
every slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.views import I32, I64, U64
from kvledger_engine.compiled import index
from kvledger_engine.compiled.arrays import BLOCK_TOKENS, GROUPS, KEY_BITS, POLICY, Arrays, unpack
from kvledger_engine.compiled.hashing import block_sum, group_key, prefix_key
from kvledger_engine.compiled.kernel import helper, kernel
from kvledger_engine.compiled.lives import filled
from kvledger_engine.compiled.order import settle

ROOT = 0
"""Content id of the empty prefix."""
_AHEAD = 8
"""So many look-ups before it is needed a bucket is asked for."""
BROKEN = -1
"""Content id of a slot one of whose full blocks is not indexed as its own: no look-up can reach what follows."""


@kernel("void(i8[::1], i4[::1], u8[::1], u8[::1], u8[::1])")
def hash_blocks(handle: Any, tokens: I32, salts: U64, sums: U64, keys: U64) -> None:
    """Running sum and key of each leading full block of `tokens` I32[t]: `sums` and `keys` U64[n]; `salts` U64[1]."""
    arrays = unpack(handle)
    size, bits, seed = arrays.settings[BLOCK_TOKENS], arrays.settings[KEY_BITS], arrays.seed[0]
    total = np.uint64(0)
    for number in range(len(keys)):
        total += block_sum(tokens, number * size, size, number * size, seed)
        sums[number] = total
        keys[number] = prefix_key(total, salts[0], number, bits)


@kernel("int64(i8[::1], i4[::1], u8[::1], u8[::1], i8[::1])")
def match(handle: Any, tokens: I32, salts: U64, keys: U64, blocks: I64) -> int:
    """Of the blocks of `tokens`, with keys U64[n], how many leading ones are indexed: they go to `blocks` I64[n]."""
    arrays = unpack(handle)
    size, parent = arrays.settings[BLOCK_TOKENS], ROOT
    for number in range(len(keys)):
        if number + _AHEAD < len(keys):
            index.expect(arrays, keys[number + _AHEAD])
        block = index.find(arrays, keys[number], salts[0], parent, tokens, number * size)
        if block < 0:
            return number
        blocks[number] = block
        parent = arrays.content[block]
    return len(keys)


@kernel("void(i8[::1], i4[::1], u8[::1], u8[::1], i8[:, ::1])")
def match_beside(handle: Any, tokens: I32, salts: U64, keys: U64, blocks: I64) -> None:
    """Beside the spine in blocks[:, 0], fill in the blocks of the other groups that hold the same, -1 for none."""
    arrays = unpack(handle)
    size, bits = arrays.settings[BLOCK_TOKENS], arrays.settings[KEY_BITS]
    for number in range(len(blocks)):
        parent = arrays.content[blocks[number, 0]]
        for group in range(1, blocks.shape[1]):
            key = group_key(keys[number], group, bits)
            blocks[number, group] = index.find(arrays, key, salts[0], parent, tokens, number * size)


@kernel("int64(i8[::1], i8[:, ::1], u8[::1], i4[:, ::1])")
def publish(handle: Any, filled_blocks: I64, salts: U64, tokens: I32) -> int:
    """Index stamped blocks that have become full, each slot's in order; returns for how many rows one is indexed now.

    `filled_blocks` I64[n, 2 + groups]: slot, number of the block in its sequence, and the blocks of all groups.
    `salts` U64[slots] and `tokens` I32[slots, length] are those of all slots. A block whose content is indexed already
    stays out. What is indexed may be shared, so it lies before the slot's own_from_token.
    """
    arrays = unpack(handle)
    count, indexed = len(filled_blocks), 0
    sums, keys = np.empty(count, np.uint64), np.empty(count, np.uint64)
    _add_up(arrays, filled_blocks, salts, tokens, sums, keys)
    for row in range(count):
        if row + _AHEAD < count:
            index.expect(arrays, keys[row + _AHEAD])
        slot, number = filled_blocks[row, 0], filled_blocks[row, 1]
        blocks = filled_blocks[row, 2:]
        indexed += _publish(arrays, slot, number, blocks, sums[row], keys[row], salts[slot], tokens[slot])
    return indexed


@helper
def _add_up(arrays: Arrays, filled_blocks: I64, salts: U64, tokens: I32, sums: U64, keys: U64) -> None:
    """The running sum and the key of every row."""
    size, bits, seed = arrays.settings[BLOCK_TOKENS], arrays.settings[KEY_BITS], arrays.seed[0]
    for row in range(len(filled_blocks)):
        slot, number = filled_blocks[row, 0], filled_blocks[row, 1]
        follows = row > 0 and filled_blocks[row - 1, 0] == slot
        before = sums[row - 1] if follows else arrays.chain_sum[slot]
        sums[row] = before + block_sum(tokens[slot], number * size, size, number * size, seed)
        keys[row] = prefix_key(sums[row], salts[slot], number, bits)


@helper
def _publish(arrays: Arrays, slot: int, number: int, blocks: I64, total: Any, key: Any, salt: Any, tokens: I32) -> bool:
    size, bits, policy = arrays.settings[BLOCK_TOKENS], arrays.settings[KEY_BITS], arrays.settings[POLICY]
    for group in range(arrays.settings[GROUPS]):
        filled(policy, arrays.whole_lives, blocks[group], number)
    parent, spine = arrays.chain_content[slot], blocks[0]
    # After a fault two requests may fill one block; only the first can index it.
    if parent == BROKEN or arrays.index_slot[spine] >= 0:
        arrays.chain_content[slot] = BROKEN
        return False
    known = index.find(arrays, key, salt, parent, tokens, number * size)
    if known >= 0:
        content, indexed = arrays.content[known], False
    else:
        content, indexed = index.insert(arrays, key, salt, parent, tokens, number * size, spine), True
    arrays.chain_sum[slot], arrays.chain_content[slot] = total, content
    for group in range(1, arrays.settings[GROUPS]):
        if arrays.index_slot[blocks[group]] >= 0:
            continue
        key_beside = group_key(key, group, bits)
        if index.find(arrays, key_beside, salt, content, tokens, number * size) < 0:
            index.insert(arrays, key_beside, salt, content, tokens, number * size, blocks[group])
            indexed = True
    if indexed:
        arrays.slot_changed[slot] = arrays.seq[0]
        settle()
        arrays.own_from_token[slot] = max(arrays.own_from_token[slot], (number + 1) * size)
    return indexed
