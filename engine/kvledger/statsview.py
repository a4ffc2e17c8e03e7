"""One complete publication's counters, histograms and gauges, found by name. Owns its copy; does no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.stats import Labels, StatsPlan
from kvledger.words import WaitCause


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """One histogram: upper `bounds` without +Inf, `buckets` (len(bounds) + 1 counts, not cumulative), `sum`."""

    bounds: tuple[float, ...]
    buckets: NDArray[np.float64]
    sum: float

    @property
    def count(self) -> float:
        """Observations."""
        return math.fsum(self.buckets) if np.isfinite(self.buckets).all() else math.nan

    def quantile_bound(self, share: float) -> float | None:
        """The upper bound of the bucket that holds the quantile; the last bound if that is +Inf; None when empty."""
        total = self.count
        if not total > 0 or not self.bounds:
            return None
        rank = int(np.searchsorted(np.cumsum(self.buckets), share * total, side="left"))
        return self.bounds[min(rank, len(self.bounds) - 1)]


@dataclass(frozen=True, slots=True)
class StatsView:
    """The stats vector of one publication. `tenants` names the columns in use, the last being `other`.

    A name or label set that the writer does not have answers None, never 0.
    """

    plan: StatsPlan
    values: NDArray[np.float64]
    tenants: tuple[str, ...]

    def gauge(self, name: str) -> float | None:
        """A published gauge (see `kvledger.stats.GAUGES`)."""
        index = self.plan.gauges.get(name)
        return None if index is None else float(self.values[index])

    def whole(self, name: str) -> int:
        """A published gauge that counts or is a time in ns; 0 when missing or no number."""
        value = self.gauge(name)
        return int(value) if value is not None and abs(value) < 2**63 else 0

    def counter(self, name: str, **labels: str) -> float | None:
        """A counter series."""
        return self.counter_of(name, tuple(labels.items()))

    def counter_of(self, name: str, labels: Labels) -> float | None:
        """A counter series, by (label, value) pairs."""
        index = self.plan.counters.get((name, labels))
        return None if index is None else float(self.values[index])

    def tenant_counter(self, name: str, **labels: str) -> Mapping[str, float] | None:
        """A per-tenant counter series, by tenant name."""
        return self.tenant_counter_of(name, tuple(labels.items()))

    def tenant_counter_of(self, name: str, labels: Labels) -> Mapping[str, float] | None:
        """A per-tenant counter series, by (label, value) pairs."""
        index = self.plan.tenant_counters.get((name, labels))
        return None if index is None else self._by_tenant(index)

    def histogram(self, name: str, **labels: str) -> HistogramValue | None:
        """A histogram series."""
        return self.histogram_of(name, tuple(labels.items()))

    def histogram_of(self, name: str, labels: Labels) -> HistogramValue | None:
        """A histogram series, by (label, value) pairs."""
        span = self.plan.histograms.get((name, labels))
        if span is None:
            return None
        end = span.index + len(span.bounds) + 1
        return HistogramValue(span.bounds, self.values[span.index : end], float(self.values[end]))

    @property
    def wait_clock(self) -> NDArray[np.float64]:
        """Seconds the queue has spent on each wait cause up to `queue_since_ns`, shape (causes,)."""
        return self.values[self.plan.wait_clock : self.plan.wait_clock + len(WaitCause)]

    @property
    def tenant_blocks(self) -> Mapping[str, float]:
        """Active blocks charged to each tenant."""
        return self._by_tenant(self.plan.tenant_blocks)

    def _by_tenant(self, index: int) -> dict[str, float]:
        columns = self.values[index : index + self.plan.columns].tolist()
        used = [*columns[: len(self.tenants) - 1], columns[-1]]
        named = dict(zip(self.tenants, used, strict=True))
        if len(named) < len(used):  # two columns of one name
            named = dict.fromkeys(named, 0.0)
            for name, value in zip(self.tenants, used, strict=True):
                named[name] += value
        return named
