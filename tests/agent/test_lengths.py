"""Effective concurrency: how many requests of a tenant's length percentiles the pool can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import SUMMARY
from kvledger.limits import Group, Limits
from kvledger_agent.lengths import MIN_REQUESTS, LengthView, effective_concurrency, length_view

LIMITS = Limits(engine="e", capacity_blocks=1000, max_requests=1, groups=(Group(block_size_tokens=16),))
TENANTS = ("acme", "umbrella", "other")


def summaries(tokens: list[int], tenant: int = 0, first_block_ns: int = 5) -> NDArray[Any]:
    records = np.zeros(len(tokens), SUMMARY)
    records["prompt_tokens"], records["tenant"], records["first_block_ns"] = tokens, tenant, first_block_ns
    return records


def test_it_is_the_pool_divided_by_the_blocks_of_a_percentile_length_not_of_the_mean() -> None:
    lengths = [160] * 94 + [16_000] * 6

    known = effective_concurrency(LIMITS, summaries(lengths), TENANTS)

    assert known == {("50", "acme"): 100.0, ("95", "acme"): 1.0, ("99", "acme"): 1.0}


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


def test_few_requests_say_nothing_about_lengths() -> None:
    few = summaries([16] * (MIN_REQUESTS - 1))

    assert length_view(LIMITS, few, TENANTS) == length_view(LIMITS, None, TENANTS) == LengthView()
