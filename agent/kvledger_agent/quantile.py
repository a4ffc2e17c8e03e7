"""A quantile of a histogram, and between what it lies: buckets and their sum say no more than that. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvledger.views import F64
from kvledger_agent.observation import HistogramView

WIDE = 3.0
"""Above this ratio of the two ends a quantile between them is a guess."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile by nearest rank. `low` and `high` hold it for certain; `high` is None where nothing bounds it.

    `value` is what Prometheus' `histogram_quantile` would give, linear within the bucket and at most the last bound,
    moved to between the two.
    """

    value: float
    low: float
    high: float | None


def is_wide(low: float, high: float | None) -> bool:
    """Whether two ends are so far apart that a quantile between them says little more than that it is over `low`."""
    return high is None or high > WIDE * low


def quantile(share: float, histogram: HistogramView) -> Quantile | None:
    """The quantile of one histogram of lengths that are not negative; None without observations."""
    counts = np.asarray(histogram.buckets, dtype=float)
    total = float(counts.sum())
    if not total > 0:
        return None
    below = np.cumsum(counts)
    index = min(int(np.searchsorted(below, share * total)), len(counts) - 1)
    before = float(below[index] - counts[index])
    lower, upper = _ends(histogram, index)
    low, high = _by_sum(share, histogram, index, before)
    if low > high * (1 + _ROUNDING):  # the sum is of another moment than the buckets
        low, high = lower, upper
    high = max(low, high)
    last = histogram.bounds[-1]
    value = last if upper == math.inf else lower + (upper - lower) * (share * total - before) / float(counts[index])
    return Quantile(value=min(max(value, low), high), low=low, high=None if high == math.inf else high)


def merged(histograms: Iterable[HistogramView]) -> HistogramView | None:
    """Histograms of the same bounds as one; None for none."""
    views = list(histograms)
    if not views:
        return None
    buckets = np.sum([view.buckets for view in views], axis=0)
    return HistogramView(bounds=views[0].bounds, buckets=buckets, sum=sum(view.sum for view in views))


def _ends(histogram: HistogramView, index: int) -> tuple[float, float]:
    """What a bucket's observations lie between."""
    edges = (0.0, *histogram.bounds, math.inf)
    return edges[index], edges[index + 1]


def _by_sum(share: float, histogram: HistogramView, index: int, before: float) -> tuple[float, float]:
    """The ends of the bucket `index`, drawn in by the sum of all observations; `before` are in the buckets below.

    Those from the quantile on are at least as large as it is, and all others at least their bucket's lower end: what
    they leave of the sum is the most that it can be. The least likewise, by the upper ends.
    """
    counts, (lower, upper) = np.asarray(histogram.buckets, dtype=float), _ends(histogram, index)
    edges = np.array([0.0, *histogram.bounds, math.inf])
    rank = max(1.0, math.ceil(share * counts.sum()))
    smaller, above = rank - 1.0 - before, before + float(counts[index]) - rank
    least = _product(counts[:index], edges[:index]) + _product(counts[index + 1 :], edges[index + 1 : -1])
    most = _product(counts[:index], edges[1 : index + 1]) + _product(counts[index + 1 :], edges[index + 2 :])
    if not math.isfinite(histogram.sum):
        return lower, upper
    high = (histogram.sum - least - smaller * lower) / (above + 1.0)
    low = (histogram.sum - most - (above * upper if above > 0 else 0.0)) / (smaller + 1.0)
    return max(lower, low), min(upper, high)


def _product(counts: F64, edges: F64) -> float:
    """What so many observations at these ends add up to: none at an infinite one add nothing."""
    there = counts > 0
    return float((counts[there] * edges[there]).sum())
