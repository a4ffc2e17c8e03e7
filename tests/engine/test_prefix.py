"""The prefix index against a dict, its keys against their definition, and what must never be shared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32, I64, U64
from kvledger_engine.prefix import PrefixIndex
from kvledger_engine.prefixkeys import block_sums, prefix_keys, prefix_salt
from tests.engine.cachekit import SALT, Kit, Memory, small_limits

CAPACITY, SIZE = 12, 2
MEMORY = Memory(small_limits(capacity=CAPACITY, block_size=SIZE))
Content = tuple[int, int, int]


def keys_of(tokens: list[int], salt: int, *, seed: int = 1, bits: int = 64) -> list[int]:
    rows = np.array(tokens, np.int32).reshape(-1, SIZE)
    positions = np.arange(rows.size).reshape(rows.shape)
    sums = block_sums(rows, positions, seed).cumsum(dtype=np.uint64)
    keys = prefix_keys(sums, np.full(len(rows), salt, np.uint64), np.arange(len(rows)), bits)
    return [int(key) for key in keys]


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
    ledger = MEMORY.ledger(VirtualClock())
    ledger.begin()
    index = PrefixIndex(ledger, block_size_tokens=SIZE)
    model: dict[Content, int] = {}
    for adds, block, token, salt, parent in moves:
        content = (salt, parent, token)
        held = next((known for known, where in model.items() if where == block), None)
        if adds and held is None:
            indexed = register(index, content, block, bits)
            assert indexed == (content not in model)
            model.setdefault(content, block)
        elif not adds and held is not None:
            index.remove(np.array([block]))
            del model[held]
        assert {known: look_up(index, known, bits) for known in every_content()} == {
            known: model.get(known, -1) for known in every_content()
        }
        assert ledger.control[CONTROL_INDEX["index_used"]] == len(model)
        slots = ledger.blocks.index_slot
        assert sorted(np.flatnonzero(slots >= 0).tolist()) == sorted(model.values())
        assert all(ledger.index.block[slots[b]] == b for b in model.values())
        assert (ledger.index.block == -2).sum() == ledger.control[CONTROL_INDEX["index_tombstones"]]


def every_content() -> list[Content]:
    return [(salt, parent, token) for salt in range(2) for parent in range(4) for token in range(3)]


def row(content: Content, bits: int) -> tuple[U64, I32, U64, I64]:
    """Keys (of salt and tokens only, so that parents collide), tokens, salts and parents of one block."""
    salt, parent, token = content
    key = keys_of([token, token], salt, bits=bits)
    tokens = np.full((1, SIZE), token, np.int32)
    return np.array(key, np.uint64), tokens, np.array([salt], np.uint64), np.array([parent], np.int64)


def register(index: PrefixIndex, content: Content, block: int, bits: int) -> bool:
    keys, tokens, salts, parents = row(content, bits)
    indexed, _ = index.register(keys, tokens, salts, np.array([block]), np.array([0]), parents)
    return len(indexed) == 1


def look_up(index: PrefixIndex, content: Content, bits: int) -> int:
    keys, tokens, salts, parents = row(content, bits)
    return int(index.find(keys, tokens, salts, parents)[0])


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
