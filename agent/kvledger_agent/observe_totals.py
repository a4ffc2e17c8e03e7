"""What a ledger has counted since ever, as `Totals`: counters, histograms, and what the engine cost. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvledger import catalog
from kvledger.families.family import Family
from kvledger.snapshot import Sample
from kvledger_agent.observation import HistogramView, Labels, Series, Totals


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored family: for each of its series the (label, value) pairs and the values alone."""

    name: str
    per_tenant: bool
    series: tuple[tuple[tuple[tuple[str, str], ...], Labels], ...]

    @classmethod
    def of(cls, family: Family) -> _Stored:
        series = tuple((pairs, tuple(value for _, value in pairs)) for pairs in catalog.series_labels(family))
        return cls(family.name, family.per_tenant, series)


_COUNTERS = tuple(map(_Stored.of, catalog.stored_counters()))
_HISTOGRAMS = tuple(map(_Stored.of, catalog.stored_histograms()))


def totals_of(sample: Sample, price_per_hour: float | None) -> Totals:
    """Every counter and histogram of the catalogue that the ledger keeps."""
    counters = {f.name: series for f in _COUNTERS if (series := _counter(sample, f)) is not None}
    epoch = sample.head.epoch
    # The epoch is in the file's name: this number stays right when a predecessor could not be read.
    counters["engine_restarts_total"] = {(): float(max(0, epoch - 1))}
    counters.pop("cost_total", None)
    if (cost := _cost(sample, price_per_hour)) is not None:
        counters["cost_total"] = cost
    if not any(group.block_bytes for group in sample.head.limits.groups):
        counters.pop("cow_bytes_total", None)
    histograms = {f.name: kept for f in _HISTOGRAMS if (kept := _histograms(sample, f))}
    return Totals(counters=counters, histograms=histograms)


def _counter(sample: Sample, family: _Stored) -> Series | None:
    series: dict[Labels, float] = {}
    for pairs, values in family.series:
        if family.per_tenant:
            by_tenant = sample.stats.tenant_counter_of(family.name, pairs) or {}
            for tenant, count in by_tenant.items():
                series[(*values, tenant)] = count
        elif (value := sample.stats.counter_of(family.name, pairs)) is not None:
            series[values] = value
    return series or None


def _histograms(sample: Sample, family: _Stored) -> Mapping[Labels, HistogramView]:
    kept: dict[Labels, HistogramView] = {}
    for pairs, values in family.series:
        found = sample.stats.histogram_of(family.name, pairs)
        if found is not None:
            kept[values] = HistogramView(bounds=found.bounds, buckets=found.buckets, sum=found.sum)
    return kept


def _cost(sample: Sample, price_per_hour: float | None) -> Series | None:
    """Cost by tenant: block-seconds ÷ (capacity × seconds) × price, else what the engine counted, else unknown."""
    if price_per_hour is not None:
        used = sample.stats.tenant_counter("block_seconds_total")
        rate = price_per_hour / 3600 / sample.head.limits.capacity_blocks
        return None if used is None else {(tenant,): seconds * rate for tenant, seconds in used.items()}
    counted = sample.stats.tenant_counter("cost_total")
    if counted is None or not any(counted.values()):
        return None
    return {(tenant,): value for tenant, value in counted.items()}
