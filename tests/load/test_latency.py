"""Distributions stay close to the truth in bounded memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_agent.load.latency import Latencies, LatencySummary


@given(st.lists(st.floats(1e-6, 1e4), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_half_a_percent_of_the_exact_one(values: list[float], q: float) -> None:
    latencies = Latencies()
    for value in values:
        latencies.observe(value)

    exact = sorted(values)[math.ceil(q * len(values)) - 1]
    assert latencies.quantile_seconds(q) == pytest.approx(exact, rel=0.0051)
    assert latencies.summary().max_seconds == max(values)
    assert latencies.summary().mean_seconds == pytest.approx(sum(values) / len(values))


def test_what_was_never_observed_is_unknown_and_not_zero() -> None:
    assert Latencies().summary() == LatencySummary(count=0)
    assert Latencies().quantile_seconds(0.5) is None


def test_a_gap_of_zero_is_counted() -> None:
    latencies = Latencies()
    latencies.observe(0.0)

    assert latencies.summary().p50_seconds == 0.0
