"""The decode kernel sees what plain torch sees, over shapes, lengths, windows and formats, and nothing that is foreign.

The whole product of head sizes, groups, block sizes and windows is met with short contexts in one format. With all
formats and long contexts it takes the interpreter a quarter of an hour: of those every pair of values of two is met.
`tests/gpu` has all of it, for a card.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.kernels.backend import TritonBackend
from kvledger_engine.kernels.decode import MAX_SPLITS, TILE_TOKENS, splits_of
from tests.engine.kernels.paged import BOUNDS, DEVICE, STORED, Paged, paged

HEAD_DIMS, GROUPS, BLOCK_SIZES, WINDOWS = (64, 96, 128), (1, 4, 8), (16, 32), (0, 100)
RAGGED = (1, 15, 16, 17, 64, 129, 500)
SHORT = (1, 33, 130)
GRID = tuple(product(HEAD_DIMS, GROUPS, BLOCK_SIZES, WINDOWS))
# A covering array: each row is (head_dim, group, block size, window, format), and every pair of values is in some row.
PAIRS = (
    (64, 1, 16, 0, "fp32"),
    (96, 4, 32, 100, "fp32"),
    (128, 8, 16, 100, "fp32"),
    (64, 4, 32, 0, "bf16"),
    (96, 8, 16, 100, "bf16"),
    (128, 1, 32, 100, "bf16"),
    (64, 8, 32, 100, "int8"),
    (96, 1, 16, 0, "int8"),
    (128, 4, 16, 0, "int8"),
    (64, 1, 16, 100, "fp8"),
    (96, 4, 32, 0, "fp8"),
    (128, 8, 32, 0, "fp8"),
)


# Contexts of 4,097 tokens, with every head size for every number of queries to a key, and every pair of other values.
LONG = (
    (64, 1, 16, 0, "fp32"),
    (64, 4, 32, 100, "bf16"),
    (64, 8, 16, 100, "fp8"),
    (96, 1, 32, 100, "int8"),
    (96, 4, 16, 0, "fp8"),
    (96, 8, 32, 0, "fp32"),
    (128, 1, 32, 0, "bf16"),
    (128, 4, 16, 100, "fp32"),
    (128, 8, 16, 0, "int8"),
)


def _error(case: Paged, *, multiprocessors: int = 8) -> float:
    backend = TritonBackend(case.layout, DEVICE, case.cells.keys.dtype, multiprocessors=multiprocessors)
    seen = backend.attend(case.query, case.cells, backend.plan(case.step, 0))
    assert seen.dtype == case.query.dtype
    return float((seen.float() - case.oracle()).abs().max())


def test_the_long_contexts_meet_every_head_size_with_every_group_and_both_sizes_of_block_and_window() -> None:
    assert {row[:2] for row in LONG} == {(head_dim, group) for head_dim in HEAD_DIMS for group in GROUPS}
    assert {row[4] for row in LONG} == set(STORED)
    for at in (0, 1):
        for other, values in ((2, BLOCK_SIZES), (3, WINDOWS)):
            assert {(row[at], row[other]) for row in LONG} == {(a, b) for a in (HEAD_DIMS, GROUPS)[at] for b in values}
    assert {row[2:4] for row in LONG} == {(size, window) for size in BLOCK_SIZES for window in WINDOWS}


def test_the_covering_array_has_every_pair_of_values() -> None:
    values = (HEAD_DIMS, GROUPS, BLOCK_SIZES, WINDOWS, tuple(STORED))
    for i, first in enumerate(values):
        for j, second in enumerate(values[:i]):
            assert {(row[i], row[j]) for row in PAIRS} == {(a, b) for a in first for b in second}


@pytest.mark.parametrize(("head_dim", "group", "block_size", "window"), GRID)
def test_every_shape_of_the_grid_sees_what_plain_torch_sees(
    head_dim: int, group: int, block_size: int, window: int
) -> None:
    case = paged(
        SHORT,
        HeadLayout(group, 1, head_dim),
        block_size=block_size,
        stored=torch.float32,
        device=DEVICE,
        window_tokens=window,
    )
    assert _error(case) <= BOUNDS[torch.float32]


@pytest.mark.parametrize(("head_dim", "group", "block_size", "window", "name"), PAIRS)
def test_a_decode_sees_what_plain_torch_sees_and_nothing_foreign(
    head_dim: int, group: int, block_size: int, window: int, name: str
) -> None:
    layout = HeadLayout(group * (2 if group == 1 else 1), 2 if group == 1 else 1, head_dim)
    case = paged(
        RAGGED, layout, block_size=block_size, stored=STORED[name], device=DEVICE, window_tokens=window, seed=head_dim
    )
    assert case.oracle().isfinite().all()
    assert _error(case) <= BOUNDS[case.query.dtype]


@pytest.mark.slow
@pytest.mark.parametrize(("head_dim", "group", "block_size", "window", "name"), LONG)
def test_a_context_of_4097_tokens_is_seen_the_same_in_every_shape(
    head_dim: int, group: int, block_size: int, window: int, name: str
) -> None:
    layout = HeadLayout(group, 1, head_dim)
    case = paged((4097, 1), layout, block_size=block_size, stored=STORED[name], device=DEVICE, window_tokens=window)
    assert _error(case, multiprocessors=132) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("name", ["fp32", "int8"])
def test_a_context_of_4097_tokens_is_joined_from_its_splits(name: str) -> None:
    case = paged((4097, 1), HeadLayout(4, 1, 64), block_size=16, stored=STORED[name], device=DEVICE)
    assert splits_of(2, 4097, 132) == MAX_SPLITS
    assert _error(case, multiprocessors=132) <= BOUNDS[torch.float32]


@pytest.mark.parametrize("name", ["bf16", "int8", "fp8"])
def test_queries_in_half_precision_lose_no_more_than_their_rounding(name: str) -> None:
    layout, asked = HeadLayout(8, 2, 64), torch.bfloat16
    case = paged((33, 200), layout, block_size=16, stored=STORED[name], device=DEVICE, asked=asked)
    assert _error(case) <= BOUNDS[asked]


@given(
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=2),
    window=st.one_of(st.just(0), st.integers(1, 100)),
    block_size=st.sampled_from([1, 3, 16]),
    heads=st.sampled_from([(1, 1), (2, 1), (6, 2), (5, 1)]),
    head_dim=st.sampled_from([2, 32, 80]),
    multiprocessors=st.sampled_from([1, 2, 5]),
    name=st.sampled_from(sorted(STORED)),
)
@settings(max_examples=12)
def test_any_ragged_batch_is_seen_the_same_however_it_is_split(
    lengths: list[int],
    window: int,
    block_size: int,
    heads: tuple[int, int],
    head_dim: int,
    multiprocessors: int,
    name: str,
) -> None:
    case = paged(
        lengths,
        HeadLayout(*heads, head_dim),
        block_size=block_size,
        stored=STORED[name],
        device=DEVICE,
        window_tokens=window,
    )
    assert _error(case, multiprocessors=multiprocessors) <= BOUNDS[torch.float32]


@given(programs=st.integers(0, 10_000), longest=st.integers(1, 200_000), multiprocessors=st.integers(1, 200))
def test_a_split_is_a_tile_or_more_and_a_full_card_is_not_split(
    programs: int, longest: int, multiprocessors: int
) -> None:
    splits = splits_of(programs, longest, multiprocessors)
    assert 1 <= splits <= MAX_SPLITS
    assert splits & (splits - 1) == 0
    assert splits == 1 or (splits // 2) * TILE_TOKENS < longest
    if programs >= 4 * multiprocessors:
        assert splits == 1


def test_larger_scores_of_a_later_split_do_not_lose_the_earlier_ones() -> None:
    case = paged((400,), HeadLayout(2, 2, 64), block_size=16, stored=torch.float32, device=DEVICE)
    with torch.inference_mode():
        case.query.mul_(30)
    assert _error(case, multiprocessors=64) <= 30 * BOUNDS[torch.float32]
