"""Blocks that tokens need, against the byte formulas' own counting of token slots."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvledger.geometry import HeadShape, LayerGroup
from kvledger.limits import Group, Limits
from kvledger_agent.needs import blocks_of, blocks_of_group, longest_tokens

SHAPE = HeadShape(kv_heads=1, head_dim=64)


@given(st.integers(1, 64), st.integers(0, 300), st.integers(0, 200), st.integers(0, 5000))
def test_blocks_of_a_group_are_the_slots_that_the_geometry_counts(
    size: int, window: int, sinks: int, tokens: int
) -> None:
    layers = LayerGroup(layers=1, shape=SHAPE, window_tokens=window or None, sink_tokens=sinks)
    group = Group(block_size_tokens=size, window_tokens=window, sink_tokens=sinks)

    held = int(blocks_of_group(group, np.array([tokens]))[0])

    assert held * size == layers.tokens_held(tokens, size)


def test_all_groups_of_a_pool_are_counted_together() -> None:
    groups = (Group(name="full", block_size_tokens=16), Group(name="window", block_size_tokens=16, window_tokens=32))
    limits = Limits(engine="e", capacity_blocks=10, max_requests=1, groups=groups)

    assert blocks_of(limits, np.array([16, 160])).tolist() == [2, 12]


def test_no_request_is_taken_to_grow_beyond_the_context_limit() -> None:
    limits = Limits(engine="e", capacity_blocks=10, max_requests=1, max_model_len_tokens=100)
    prompts, outputs = np.array([90, 10], np.int32), np.array([50, 20], np.int32)

    assert longest_tokens(limits, prompts, outputs).tolist() == [100, 30]
