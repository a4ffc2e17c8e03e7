"""A bar is met by the whole interval or not at all."""

from __future__ import annotations

import pytest

from bench.estimate import Estimate
from bench.result import Bar, Sense


def between(low: float, high: float) -> Estimate:
    return Estimate(value=(low + high) / 2, low=low, high=high, p10=low, p90=high, windows=10)


@pytest.mark.parametrize(
    ("low", "high", "at_most", "at_least"),
    [(3, 4, True, False), (3, 5, True, False), (4, 5.1, False, False), (5, 6, False, True), (6, 7, False, True)],
)
def test_a_bar_is_met_when_the_whole_interval_is_on_its_good_side(
    low: float, high: float, at_most: bool, at_least: bool
) -> None:
    assert Bar(Sense.AT_MOST, 5).met(between(low, high)) is at_most
    assert Bar(Sense.AT_LEAST, 5).met(between(low, high)) is at_least
