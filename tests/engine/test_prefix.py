"""The prefix index against a dict, its keys against their definition, and what must never be shared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32, I64, U64
from kvledger_engine.compiled import chains, index
from kvledger_engine.compiled.arrays import unpack
from kvledger_engine.compiled.kernel import aside
from kvledger_engine.memory import CacheMemory
from kvledger_engine.prefixkeys import prefix_salt
from tests.engine.cachekit import SALT, Kit, Memory, small_limits

CAPACITY, SIZE = 12, 2
MEMORY = Memory(small_limits(capacity=CAPACITY, block_size=SIZE))
Content = tuple[int, int, int]


def keys_of(tokens: list[int], salt: int, *, seed: int = 1, bits: int = 64) -> list[int]:
    memory = CacheMemory(MEMORY.ledger(VirtualClock()), key_bits=bits, hash_seed=seed)
    sums, keys = np.zeros((2, len(tokens) // SIZE), np.uint64)
    chains.hash_blocks(memory.handle, np.array(tokens, np.int32), np.array([salt], np.uint64), sums, keys)
    return [int(key) for key in keys]


@aside
def insert(handle: Any, key: U64, salt: U64, parent: int, tokens: I32, block: int) -> bool:
    """As a block that fills is indexed: only if its content is not yet."""
    arrays = unpack(handle)
    if index.find(arrays, key[0], salt[0], parent, tokens, 0) >= 0:
        return False
    index.insert(arrays, key[0], salt[0], parent, tokens, 0, block)
    return True


@aside
def find(handle: Any, key: U64, salt: U64, parent: int, tokens: I32) -> int:
    found: int = index.find(unpack(handle), key[0], salt[0], parent, tokens, 0)
    return found


@aside
def remove(handle: Any, blocks: I64) -> None:
    index.remove(unpack(handle), blocks, 0)


def test_a_key_stands_for_the_whole_prefix_its_order_and_its_place() -> None:
    keys = keys_of([1, 2, 3, 4], 5)
    assert keys[0] == keys_of([1, 2, 9, 9], 5)[0]
    others = [keys_of(tokens, 5)[1] for tokens in ([2, 1, 3, 4], [1, 2, 4, 3], [3, 4, 1, 2], [1, 2, 1, 2])]
    assert len({*keys, *others}) == 6


@pytest.mark.parametrize(
    "other",
    [
        prefix_salt("b", adapter="x", kv_format="fp8"),
        prefix_salt("a", adapter="y", kv_format="fp8"),
        prefix_salt("a", adapter="x", kv_format="bf16"),
        prefix_salt("ax", kv_format="fp8"),
    ],
    ids=["tenant", "adapter", "format", "moved boundary"],
)
def test_tenant_adapter_and_format_each_make_another_salt_and_so_another_key(other: int) -> None:
    salt = prefix_salt("a", adapter="x", kv_format="fp8")
    assert salt == prefix_salt("a", adapter="x", kv_format="fp8")
    assert keys_of([1, 2], salt) != keys_of([1, 2], other)


def test_the_seed_of_a_ledger_changes_every_key() -> None:
    assert set(keys_of([1, 2, 3, 4], 5, seed=1)).isdisjoint(keys_of([1, 2, 3, 4], 5, seed=2))


@given(st.lists(st.integers(0, 3), min_size=SIZE, max_size=6 * SIZE), st.integers(1, 8))
def test_no_key_is_zero_however_few_bits_it_has(tokens: list[int], bits: int) -> None:
    keys = keys_of(tokens[: len(tokens) // SIZE * SIZE], 0, bits=bits)
    assert all(0 < key < 1 << max(bits, 1) or key == 1 for key in keys)


def test_no_token_is_in_the_ledger() -> None:
    kit = Kit()
    tokens = [123456789 + i for i in range(13)]
    kit.start(0, tokens)
    image = bytes(kit.memory.bytes)
    assert kit.blocks.prefix_hash.astype(bool).sum() == 3
    for token in tokens:
        assert token.to_bytes(4, "little") not in image


Moves = st.lists(
    st.tuples(st.booleans(), st.integers(0, CAPACITY - 1), st.integers(0, 2), st.integers(0, 1), st.integers(0, 3)),
    max_size=60,
)


@settings(max_examples=150)
@given(moves=Moves, bits=st.sampled_from((2, 8, 64)))
def test_the_index_is_a_dict_of_salt_parent_and_tokens(moves: list[tuple[bool, int, int, int, int]], bits: int) -> None:
    contents = {content: row(content, bits) for content in every_content()}
    ledger = MEMORY.ledger(VirtualClock())
    ledger.begin()
    memory = CacheMemory(ledger)
    model: dict[Content, int] = {}
    for adds, block, token, salt, parent in moves:
        content = (salt, parent, token)
        held = next((known for known, where in model.items() if where == block), None)
        if adds and held is None:
            key, salts, tokens = contents[content]
            assert insert(memory.handle, key, salts, parent, tokens, block) == (content not in model)
            model.setdefault(content, block)
        elif not adds and held is not None:
            remove(memory.handle, np.array([block]))
            del model[held]
        found = {
            known: find(memory.handle, key, salts, known[1], tokens) for known, (key, salts, tokens) in contents.items()
        }
        assert found == {known: model.get(known, -1) for known in contents}
        assert ledger.control[CONTROL_INDEX["index_used"]] == len(model)
        slots = ledger.blocks.index_slot
        assert sorted(np.flatnonzero(slots >= 0).tolist()) == sorted(model.values())
        assert all(ledger.index.block[slots[b]] == b for b in model.values())
        assert (memory.arrays.passed >= 0).all()
        if not model:
            assert not memory.arrays.passed.any()


def every_content() -> list[Content]:
    return [(salt, parent, token) for salt in range(2) for parent in range(4) for token in range(3)]


def row(content: Content, bits: int) -> tuple[U64, U64, I32]:
    """Key (of salt and tokens only, so that parents collide), salt and tokens of one block."""
    salt, _, token = content
    key = np.array(keys_of([token, token], salt, bits=bits), np.uint64)
    return key, np.array([salt], np.uint64), np.full(SIZE, token, np.int32)


def test_equal_tokens_after_different_prefixes_under_one_key_are_told_apart() -> None:
    kit = Kit(key_bits=1)
    first, second = [1] * 4 + [5] * 5, [2] * 4 + [5] * 5
    kit.start(0, first)
    kit.start(1, second)
    assert kit.start(2, first) == 8
    assert kit.held(2)[:2] == kit.held(0)[:2]
    assert kit.start(3, second) == 8
    assert kit.held(3)[:2] == kit.held(1)[:2]


def test_another_salt_shares_nothing() -> None:
    kit = Kit()
    kit.start(0, [1] * 9, salt=SALT)
    assert kit.start(1, [1] * 9, salt=SALT + 1) == 0
    assert kit.start(2, [1] * 9, salt=SALT) == 8


def test_a_block_whose_parent_was_evicted_is_not_found_under_its_successor() -> None:
    kit = Kit(small_limits(capacity=4))
    kit.start(0, [1] * 4 + [2] * 4 + [3])
    kit.end(0)  # the chain is cached, its tail first in line
    assert kit.eviction_order() == [1, 0]
    kit.start(1, [9] * 12)  # takes two free blocks and the tail's
    assert kit.eviction_order() == [0]
    kit.end(1)
    assert kit.start(2, [1] * 4 + [2] * 4 + [3]) == 4
