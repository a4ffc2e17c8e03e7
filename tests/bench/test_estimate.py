"""The estimate: a quantile with an interval that holds it, and nothing made up from too little."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.estimate import estimate

FIGURES = st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=40)


@given(FIGURES, st.sampled_from([0.5, 0.99]))
def test_an_estimate_lies_in_its_interval_and_within_what_was_measured(figures: list[float], quantile: float) -> None:
    found = estimate(figures, quantile=quantile)
    assert min(figures) <= found.low <= found.value <= found.high <= max(figures)
    assert found.p10 <= found.p90
    assert found.windows == len(figures)


def test_the_value_is_the_quantile_asked_for() -> None:
    figures = list(range(101))
    assert estimate(figures).value == 50
    assert estimate(figures, quantile=0.99).value == 99


def test_more_windows_make_the_interval_narrower_and_leave_the_spread() -> None:
    few, many = (estimate(np.random.default_rng(1).normal(100, 10, count)) for count in (10, 1000))
    assert many.high - many.low < (few.high - few.low) / 2
    assert 20 < many.p90 - many.p10 < 32


def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(7)
    held = sum(found.low <= 100 <= found.high for found in (estimate(random.normal(100, 10, 60)) for _ in range(200)))
    assert held >= 175, held


@pytest.mark.parametrize("figures", [[], [1.0, 2.0], [1.0, math.nan, 2.0], [1.0, math.inf, 2.0]])
def test_too_few_windows_or_none_that_count_are_no_estimate(figures: list[float]) -> None:
    with pytest.raises(BenchError, match="an estimate needs 3"):
        estimate(figures)
