"""Attention over ragged batches: equal to a loop over sequences, bounded, and blind to what it must not read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import AttentionPlan, HeadLayout, plan_attention
from kvledger_engine.attention.reference import Gather, attend
from kvledger_engine.batch import Batch
from tests.engine.model.batches import batch, windowed

CPU = torch.device("cpu")
HEAD_DIM = 4


def _slots(step: Batch, row: int) -> Tensor:
    """The slot of every position of a row up to its last token; -1 where its table has no block any more."""
    size, ends, tables = step.block_size_tokens, step.starts + step.counts, step.tables[0]
    table = tables.blocks[tables.offsets[row] : tables.offsets[row + 1]].astype(np.int64)
    held = (table[:, None] * size + np.arange(size)).reshape(-1)
    gone = np.full(tables.skipped[row] * size, -1)
    sinks = tables.sink_tokens
    return torch.from_numpy(np.concatenate((held[:sinks], gone, held[sinks:]))[: ends[row]])


def _seen(step: Batch, slots: Tensor, position: int, *, last: int | None = None) -> Tensor:
    """Of a row's slots those that a query at `position` sees; or that queries from it to `last` see together."""
    window, sinks, end = step.tables[0].window_tokens, step.tables[0].sink_tokens, (last or position) + 1
    first = max(0, position + 1 - window) if window else 0
    return torch.cat((slots[: min(sinks, first)], slots[first:end]))


def _by_loops(step: Batch, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One sequence, one query and one head at a time."""
    group, token, out = query.shape[1] // keys.shape[0], 0, torch.empty_like(query)
    keys, values = keys.flatten(1, 2), values.flatten(1, 2)
    for row in range(len(step.slots)):
        slots = _slots(step, row)
        for position in range(int(step.starts[row]), int(step.starts[row] + step.counts[row])):
            seen = _seen(step, slots, position)
            assert (seen >= 0).all()
            for head in range(query.shape[1]):
                key, value = (cells[head // group, seen] for cells in (keys, values))
                weights = (key @ query[token, head] / HEAD_DIM**0.5).softmax(dim=0)
                out[token, head] = weights @ value
            token += 1
    return out


def _store(step: Batch, rows: list[int], kv_heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values of some rows, float64; everything else, a spare block included, is NaN.

    So is what no query of a row sees, though it lies in a block that the row still holds.
    """
    shape = (kv_heads, len(step.table_blocks) + 1, step.block_size_tokens, HEAD_DIM)
    keys, values = (torch.full(shape, torch.nan, dtype=torch.float64) for _ in range(2))
    for row in rows:
        at = _seen(step, _slots(step, row), int(step.starts[row]), last=int((step.starts + step.counts)[row]) - 1)
        for cells in (keys, values):
            cells.flatten(1, 2)[:, at] = torch.randn(kv_heads, len(at), HEAD_DIM, dtype=torch.float64)
    return keys, values


@given(
    rows=st.lists(st.tuples(st.integers(0, 150), st.one_of(st.just(1), st.integers(1, 40))), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 3, 16]),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    max_elements=st.sampled_from([1, 500, 20_000, 1 << 24]),
    window=st.one_of(st.just(0), st.integers(1, 100)),
    sink_blocks=st.integers(0, 3),
    healthy=st.data(),
)
@settings(max_examples=60)
def test_attention_is_that_of_each_sequence_alone_and_no_nan_of_another_gets_in(
    rows: list[tuple[int, int]],
    block_size: int,
    kv_heads: int,
    group: int,
    max_elements: int,
    window: int,
    sink_blocks: int,
    healthy: st.DataObject,
) -> None:
    torch.manual_seed(0)
    step = windowed(rows, window, block_size_tokens=block_size, sink_blocks=sink_blocks)
    sound = healthy.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
    keys, values = _store(step, sound, kv_heads)
    query = torch.randn(len(step.tokens), kv_heads * group, HEAD_DIM, dtype=torch.float64)
    plan = plan_attention(step, HeadLayout(kv_heads * group, kv_heads, HEAD_DIM), CPU, max_elements=max_elements)
    ours, theirs = attend(query, LayerCells(keys, values), plan, Gather()), _by_loops(step, query, keys, values)
    of_sound = torch.from_numpy(np.isin(np.repeat(step.slots, step.counts), sound))
    assert theirs[of_sound].isfinite().all()
    torch.testing.assert_close(ours[of_sound], theirs[of_sound], atol=1e-12, rtol=0)
    assert ours[~of_sound].isnan().all()


def _sizes(plan: AttentionPlan) -> list[tuple[int, int, int]]:
    """(segments, queries, context) of each tile."""
    return [(t.segments, len(t.queries) // t.segments, len(t.slots) // t.segments) for t in plan.tiles]


@pytest.mark.parametrize("rows", [[(0, 1800), *[(300, 1)] * 100], [(i, 1) for i in range(1, 2000, 9)], [(0, 3000)]])
def test_padding_at_most_doubles_the_work_and_takes_few_tiles(rows: list[tuple[int, int]]) -> None:
    plan = plan_attention(batch(rows), HeadLayout(4, 2, 32), CPU)
    computed = sum(segments * queries * context for segments, queries, context in _sizes(plan))
    rectangles = sum(count * (start + count) for start, count in rows)
    assert computed <= 2 * rectangles + 64 * len(rows)
    assert len(plan.tiles) <= 12


@pytest.mark.parametrize("max_elements", [1, 10_000, 1_000_000])
def test_no_tile_is_larger_than_the_bound_unless_it_is_a_single_segment(max_elements: int) -> None:
    rows = [(0, 700), (900, 30), *[(400 + i, 1) for i in range(50)]]
    layout = HeadLayout(8, 2, 16)
    plan = plan_attention(batch(rows), layout, CPU, max_elements=max_elements)
    assert len(set(plan.order.tolist())) == len(plan.order) == 780
    for segments, queries, context in _sizes(plan):
        scores, gathered = (segments * context * width for width in (layout.heads * queries, 2 * 16))
        assert scores <= max_elements or (segments == 1 and queries == 1)
        assert gathered <= max_elements or segments == 1


@pytest.mark.parametrize("window", [0, 100])
def test_a_plan_for_some_rows_sees_what_the_plan_for_all_of_them_does(window: int) -> None:
    torch.manual_seed(0)
    step = windowed([(90, 1), (0, 40), (300, 7), (5, 1)], window)
    keys, values = _store(step, [0, 1, 2, 3], 2)
    query, layout = torch.randn(49, 4, HEAD_DIM, dtype=torch.float64), HeadLayout(4, 2, HEAD_DIM)
    whole = attend(query, LayerCells(keys, values), plan_attention(step, layout, CPU), Gather())
    plan = plan_attention(step, layout, CPU, rows=np.array([1, 3]))
    some = attend(query, LayerCells(keys, values), plan, Gather())
    torch.testing.assert_close(some, whole[[*range(1, 41), 48]], atol=1e-12, rtol=0)


def test_a_window_is_all_that_its_tiles_gather() -> None:
    plan = plan_attention(windowed([(5000, 1)] * 3, 100), HeadLayout(4, 2, 32), CPU)
    assert _sizes(plan) == [(3, 1, 100)]
    with_sinks = plan_attention(windowed([(5000, 1)] * 3, 100, sink_blocks=2), HeadLayout(4, 2, 32), CPU)
    assert _sizes(with_sinks) == [(3, 1, 108)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_lose_nothing_but_the_rounding_of_what_they_are_given(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    step = batch([(700, 1), (0, 90)])
    keys, values = (cells.to(dtype) for cells in _store(step, [0, 1], 2))
    query = (3 * torch.randn(91, 4, HEAD_DIM)).to(dtype)
    plan = plan_attention(step, HeadLayout(4, 2, HEAD_DIM), CPU)
    exact = _by_loops(step, query.double(), keys.double(), values.double())
    # Four roundings of a number below 4: the weights', and the output's.
    error = (attend(query, LayerCells(keys, values), plan, Gather()).double() - exact).abs().max()
    assert error <= 4 * 4 * torch.finfo(dtype).eps
