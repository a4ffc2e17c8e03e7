"""Effective concurrency: how many requests of a tenant's length percentiles the pool can hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvledger import geometry
from kvledger.layout import SUMMARY
from kvledger.limits import Group, Limits
from kvledger_agent.lengths import MIN_REQUESTS, LengthView, effective_concurrency, length_view

LIMITS = Limits(engine="e", capacity_blocks=1000, max_requests=1, groups=(Group(block_size_tokens=16),))
TENANTS = ("acme", "umbrella", "other")


def summaries(tokens: list[int], tenant: int = 0, first_block_ns: int = 5) -> NDArray[Any]:
    records = np.zeros(len(tokens), SUMMARY)
    records["prompt_tokens"], records["tenant"], records["first_block_ns"] = tokens, tenant, first_block_ns
    return records


def sized_limits(reserve: int, blocks: int, block_size: int, bytes_per_token: int) -> Limits:
    """A pool of one group whose budget holds its blocks and the reserve."""
    group = Group(
        block_size_tokens=block_size, block_bytes=block_size * bytes_per_token, bytes_per_token=bytes_per_token
    )
    budget = blocks * group.block_bytes + reserve
    return replace(LIMITS, capacity_blocks=blocks, groups=(group,), budget_bytes=budget, reserve_bytes=reserve)


def test_it_is_the_pool_divided_by_the_blocks_of_a_percentile_length_not_of_the_mean() -> None:
    lengths = [160] * 94 + [16_000] * 6

    known = effective_concurrency(LIMITS, summaries(lengths), TENANTS)

    assert known == {("50", "acme"): 100.0, ("95", "acme"): 1.0, ("99", "acme"): 1.0}


def test_a_quota_bounds_what_a_tenant_can_hold_and_nobody_elses() -> None:
    both = np.concatenate([summaries([160] * MIN_REQUESTS, 0), summaries([160] * MIN_REQUESTS, 1)])

    known = effective_concurrency(LIMITS, both, TENANTS, {"acme": 25, "umbrella": 5000})

    assert known is not None
    assert {known["50", "acme"], known["95", "acme"]} == {2.5}
    assert known["50", "umbrella"] == 100.0, "a quota beyond the pool gives no more than the pool"


def test_it_is_unknown_without_any_ended_request() -> None:
    assert effective_concurrency(LIMITS, None, TENANTS) is None


def test_a_tenant_with_few_requests_is_left_out() -> None:
    few, many = summaries([16] * (MIN_REQUESTS - 1), 0), summaries([32] * MIN_REQUESTS, 1)

    known = effective_concurrency(LIMITS, np.concatenate([few, many]), TENANTS)

    assert known is not None
    assert {tenant for _, tenant in known} == {"umbrella"}


def test_requests_that_never_held_a_block_say_nothing_about_lengths() -> None:
    assert effective_concurrency(LIMITS, summaries([16] * 50, first_block_ns=0), TENANTS) is None


def test_columns_that_are_not_in_use_belong_to_other() -> None:
    known = effective_concurrency(LIMITS, summaries([16] * 50, tenant=61), TENANTS)

    assert known is not None
    assert {tenant for _, tenant in known} == {"other"}


def test_all_tenants_together_have_percentiles_of_their_own() -> None:
    short, long = summaries([16] * 10, tenant=0), summaries([1600] * 10, tenant=1)

    view = length_view(LIMITS, np.concatenate([short, long]), TENANTS)

    assert view.tokens == {("50",): 1600.0, ("95",): 1600.0, ("99",): 1600.0}
    assert view.maximum_concurrency == {("50",): 10.0, ("95",): 10.0, ("99",): 10.0}
    assert view.by_tenant is None


@given(
    reserve=st.integers(1, 1 << 40),
    blocks=st.integers(1, 1 << 20),
    block_size=st.sampled_from((1, 8, 16, 784)),
    bytes_per_token=st.integers(1, 1 << 20),
    length=st.integers(1, 1 << 20),
)
def test_what_fits_is_the_formula_of_the_design_up_to_the_rounding_to_blocks(
    reserve: int, blocks: int, block_size: int, bytes_per_token: int, length: int
) -> None:
    sized = sized_limits(reserve, blocks, block_size, bytes_per_token)

    def formula(tokens: int) -> float:
        return geometry.effective_concurrency(
            budget_bytes=sized.budget_bytes,
            bytes_per_token=bytes_per_token,
            context_tokens=tokens,
            reserve_bytes=reserve,
        )

    fits = length_view(sized, summaries([length] * MIN_REQUESTS), TENANTS).maximum_concurrency

    assert fits is not None
    for fit in fits.values():
        assert formula(length + block_size - 1) * (1 - 1e-9) <= fit <= formula(length) * (1 + 1e-9)
        assert fit == pytest.approx(blocks / -(-length // block_size)), "which is the pool over blocks of a request"


def test_a_larger_reserve_of_the_same_budget_leaves_room_for_fewer() -> None:
    sized = sized_limits(reserve=1000, blocks=100, block_size=16, bytes_per_token=10)
    heavier = replace(sized, reserve_bytes=1000 + 8000)

    def fitting(limits: Limits) -> float:
        return (length_view(limits, summaries([160] * MIN_REQUESTS), TENANTS).maximum_concurrency or {})[("50",)]

    assert fitting(sized) == pytest.approx(10.0)
    assert fitting(heavier) == pytest.approx(5.0)


def test_a_window_and_several_groups_are_counted() -> None:
    groups = (
        Group(name="full", block_size_tokens=16, block_bytes=160),
        Group(name="window", block_size_tokens=16, block_bytes=320, window_tokens=32),
    )
    sized = Limits(
        engine="e", capacity_blocks=1, max_requests=1, groups=groups, budget_bytes=9_600 + 7, reserve_bytes=7
    )

    fits = length_view(sized, summaries([160] * MIN_REQUESTS), TENANTS).maximum_concurrency

    assert fits is not None
    assert [*fits.values()] == pytest.approx([9_600 / (10 * 160 + 2 * 320)] * 3)


def test_a_reserve_as_large_as_the_budget_is_not_believed() -> None:
    sized = replace(sized_limits(1000, 100, 16, 10), budget_bytes=1000)

    view = length_view(sized, summaries([160] * MIN_REQUESTS), TENANTS)

    assert view.maximum_concurrency == {("50",): 10.0, ("95",): 10.0, ("99",): 10.0}


def test_few_requests_say_nothing_about_lengths() -> None:
    few = summaries([16] * (MIN_REQUESTS - 1))

    assert length_view(LIMITS, few, TENANTS) == length_view(LIMITS, None, TENANTS) == LengthView()
