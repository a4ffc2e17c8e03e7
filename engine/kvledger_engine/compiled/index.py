"""The prefix index: full blocks by the salted key of the prefix that ends in them, in buckets of a cache line.

A key's bucket is its remainder; where that is full its entry lies in the next one, and so on. How many entries have
gone past a bucket is counted, so that a look-up knows whether to follow, and removing an entry is one store. Owns
`index.key`, `index.block`, the back pointer `block.index_slot`, and the contents that blocks stand for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32, I64, U64
from kvledger_engine.compiled.arrays import INDEX_CHANGES, NEXT_CONTENT, Arrays
from kvledger_engine.compiled.kernel import helper
from kvledger_engine.compiled.prefetch import prefetch

_USED = CONTROL_INDEX["index_used"]
WAYS = 8
"""Keys of a cache line; see docs/ledger-format.md."""
NOWHERE = -1


@helper
def home_of(key: Any, buckets: int) -> Any:
    """The bucket that a key's entry lies in if there is room."""
    return np.int64(key & np.uint64(buckets - 1))


@helper
def place(index_key: U64, index_block: I32, passed: I32, key: Any, block: int) -> int:
    """Store a block under a key; returns its slot. There must be a free one."""
    bucket = home_of(key, len(passed))
    while True:
        for slot in range(bucket * WAYS, (bucket + 1) * WAYS):
            if index_block[slot] < 0:
                index_key[slot] = key
                index_block[slot] = block
                return slot
        passed[bucket] += 1
        bucket = (bucket + 1) & (len(passed) - 1)


@helper
def vacate(index_block: I32, passed: I32, key: Any, slot: int) -> None:
    """Empty the slot of an entry with this key, which is not read: it lies far from all else."""
    bucket = home_of(key, len(passed))
    while bucket != slot // WAYS:
        passed[bucket] -= 1
        bucket = (bucket + 1) & (len(passed) - 1)
    index_block[slot] = NOWHERE


@helper
def find(arrays: Arrays, key: Any, salt: Any, parent: int, tokens: I32, first: int) -> Any:
    """The block indexed under that key for tokens[first : first + block size] after content `parent`; -1 = none.

    Keys may be equal by chance or by design: contents decide.
    """
    index_key, index_block, passed, content = arrays.index_key, arrays.index_block, arrays.passed, arrays.content
    bucket = home_of(key, len(passed))
    for _ in range(len(passed)):
        for slot in range(bucket * WAYS, (bucket + 1) * WAYS):
            block = index_block[slot]
            if (
                index_key[slot] == key
                and block >= 0
                and content[block] != 0
                and arrays.parent[block] == parent
                and arrays.salt[block] == salt
                and holds(arrays.block_tokens, block, tokens, first)
            ):
                return np.int64(block)
        if passed[bucket] == 0:
            break
        bucket = (bucket + 1) & (len(passed) - 1)
    return NOWHERE


@helper
def expect(arrays: Arrays, key: Any) -> None:
    """A key is looked up soon."""
    first = home_of(key, len(arrays.passed)) * WAYS
    prefetch(arrays.index_key, first)
    prefetch(arrays.index_block, first)


@helper
def holds(block_tokens: I32, block: int, tokens: I32, first: int) -> bool:
    """Whether a block holds tokens[first : first + block size]."""
    differing = 0
    for number in range(block_tokens.shape[1]):
        differing += block_tokens[block, number] != tokens[first + number]
    return differing == 0


@helper
def insert(arrays: Arrays, key: Any, salt: Any, parent: int, tokens: I32, first: int, block: int) -> int:
    """Index a full, stamped block that is not indexed; returns its content id, which is new."""
    content = arrays.words[NEXT_CONTENT]
    arrays.words[NEXT_CONTENT] = content + 1
    arrays.words[INDEX_CHANGES] += 1
    for number in range(arrays.block_tokens.shape[1]):
        arrays.block_tokens[block, number] = tokens[first + number]
    arrays.salt[block] = salt
    arrays.parent[block] = parent
    arrays.content[block] = content
    arrays.prefix_hash[block] = key
    arrays.index_slot[block] = place(arrays.index_key, arrays.index_block, arrays.passed, key, block)
    arrays.control[_USED] += 1
    return content


@helper
def remove(arrays: Arrays, blocks: I64, first: int) -> None:
    """Forget the stamped, indexed blocks from number `first` on: their content is about to be lost."""
    index_block, passed = arrays.index_block, arrays.passed
    index_slot, prefix_hash, content = arrays.index_slot, arrays.prefix_hash, arrays.content
    for number in range(first, len(blocks)):
        block = blocks[number]
        content[block] = 0
        vacate(index_block, passed, prefix_hash[block], index_slot[block])
        index_slot[block] = NOWHERE
        prefix_hash[block] = 0
    arrays.control[_USED] -= len(blocks) - first
    arrays.words[INDEX_CHANGES] += 1
