"""Distributions of seconds in bounded memory: logarithmic buckets, quantiles within 0.5 %."""

from __future__ import annotations

import math
from dataclasses import dataclass

_GROWTH = 1.01
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST_SECONDS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """A distribution in seconds; everything but the count is None if nothing was observed."""

    count: int
    mean_seconds: float | None = None
    p50_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None
    max_seconds: float | None = None


class Latencies:
    """Counts observations in buckets that grow by 1 %; count, mean and maximum are exact."""

    def __init__(self) -> None:
        """Nothing observed."""
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._sum_seconds = 0.0
        self._max_seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation; below a microsecond counts as a microsecond in the quantiles."""
        bucket = max(0, math.ceil(math.log(max(seconds, _SMALLEST_SECONDS) / _SMALLEST_SECONDS) / _LOG_GROWTH))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        self._sum_seconds += seconds
        self._max_seconds = max(self._max_seconds, seconds)

    def quantile_seconds(self, q: float) -> float | None:
        """The value that a share `q` of the observations does not exceed (nearest rank); None if there are none."""
        if not self._count:
            return None
        rank, seen = math.ceil(q * self._count), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self._max_seconds, _SMALLEST_SECONDS * math.exp(_LOG_GROWTH * (bucket - 0.5)))
        return self._max_seconds

    def summary(self) -> LatencySummary:
        """What is reported of it."""
        if not self._count:
            return LatencySummary(count=0)
        return LatencySummary(
            count=self._count,
            mean_seconds=self._sum_seconds / self._count,
            p50_seconds=self.quantile_seconds(0.50),
            p95_seconds=self.quantile_seconds(0.95),
            p99_seconds=self.quantile_seconds(0.99),
            max_seconds=self._max_seconds,
        )
