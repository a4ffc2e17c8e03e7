"""The stats group: every counter, bucket and published gauge as one vector of 64-bit floats.

Owns the mapping name + labels -> index, for the writer's private copy and the reader's. A float counts exactly to
2^53. One vector means that all of it is published, read and inherited as one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger import catalog
from kvledger.words import WaitCause

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]

GAUGES: tuple[tuple[str, str], ...] = (
    ("seq", "publication these values belong to"),
    ("clock_ns", "ledger clock at the publication"),
    ("monotonic_ns", "CLOCK_MONOTONIC at the publication"),
    ("wall_ns", "wall clock at the publication"),
    ("free_blocks", "free blocks, counted by the free list"),
    ("cached_blocks", "cached blocks, counted by the eviction order"),
    ("active_blocks", "active blocks, counted by the reference counts"),
    ("steps", "steps this engine process has completed"),
    ("last_token_ns", "ledger clock at the last token computed, of a prompt or of an answer, or admission"),
    ("prefill_seconds", "time of the compute that went to prompt tokens, in steps that are mostly prompts"),
    ("prefill_tokens", "prompt tokens that were computed in it"),
    ("idle", "1 when the engine had no work"),
    ("queue_cause", "wait cause of the queue since queue_since_ns"),
    ("queue_since_ns", "ledger clock up to which the wait clock has been advanced"),
    ("running", "requests in the running set"),
    ("waiting", "requests waiting"),
)

_FEW = 32  # so many observations are counted faster one by one than as an array


@dataclass(frozen=True, slots=True)
class HistogramSpan:
    """Where one histogram lies: `len(bounds) + 1` buckets (not cumulative), then the sum of observations."""

    index: int
    bounds: tuple[float, ...]

    @property
    def size(self) -> int:
        """Values it occupies: buckets, overflow bucket, sum."""
        return len(self.bounds) + 2


@dataclass(slots=True)
class StatsPlan:
    """Indices of everything in the vector. `columns` is the width of a per-tenant counter."""

    columns: int
    gauges: dict[str, int] = field(default_factory=dict)
    wait_clock: int = 0
    tenant_blocks: int = 0
    counters: dict[Key, int] = field(default_factory=dict)
    tenant_counters: dict[Key, int] = field(default_factory=dict)
    histograms: dict[Key, HistogramSpan] = field(default_factory=dict)
    size: int = 0

    def _take(self, count: int) -> int:
        index, self.size = self.size, self.size + count
        return index

    def describe(self, unreported: Collection[str] = ()) -> dict[str, Any]:
        """The plan as JSON: a reader of another version finds every value by name, and nothing of `unreported`."""
        return {
            "size": self.size,
            "columns": self.columns,
            "gauges": [{"name": n, "index": self.gauges[n], "help": text} for n, text in GAUGES],
            "wait_clock": {"index": self.wait_clock, "causes": list(WaitCause.words()), "unit": "seconds"},
            "tenant_blocks": {"index": self.tenant_blocks, "unit": "blocks"},
            "counters": [self._entry(k, i, width=1) for k, i in self.counters.items() if k[0] not in unreported]
            + [
                self._entry(k, i, width=self.columns) for k, i in self.tenant_counters.items() if k[0] not in unreported
            ],
            "histograms": [
                self._entry(k, span.index, width=span.size) | {"bounds": list(span.bounds)}
                for k, span in self.histograms.items()
                if k[0] not in unreported
            ],
        }

    @staticmethod
    def _entry(key: Key, index: int, *, width: int) -> dict[str, Any]:
        family = catalog.BY_NAME[key[0]]
        return {
            "name": key[0],
            "labels": dict(key[1]),
            "index": index,
            "width": width,
            "unit": family.unit,
            "help": family.help,
            "per_tenant": family.per_tenant,
        }


def plan_stats(columns: int) -> StatsPlan:
    """Lay out the vector for `columns` tenant columns from the catalogue."""
    plan = StatsPlan(columns)
    for name, _ in GAUGES:
        plan.gauges[name] = plan._take(1)
    plan.wait_clock = plan._take(len(WaitCause))
    plan.tenant_blocks = plan._take(columns)
    for family in catalog.stored_counters():
        for labels in catalog.series_labels(family):
            target = plan.tenant_counters if family.per_tenant else plan.counters
            target[family.name, labels] = plan._take(columns if family.per_tenant else 1)
    for family in catalog.stored_histograms():
        for labels in catalog.series_labels(family):
            plan.histograms[family.name, labels] = HistogramSpan(plan.size, family.buckets)
            plan._take(len(family.buckets) + 2)
    return plan


def plan_from_description(description: Mapping[str, Any]) -> StatsPlan:
    """The plan another writer used, from its self-description. Raises KeyError, TypeError or ValueError on nonsense."""
    size, columns = int(description["size"]), int(description["columns"])
    plan = StatsPlan(columns, size=size)
    plan.gauges = {str(g["name"]): _inside(g["index"], 1, size) for g in description["gauges"]}
    plan.wait_clock = _inside(description["wait_clock"]["index"], len(WaitCause), size)
    plan.tenant_blocks = _inside(description["tenant_blocks"]["index"], columns, size)
    for entry in description["counters"]:
        key = (str(entry["name"]), _labels(entry["labels"]))
        target = plan.tenant_counters if entry["per_tenant"] else plan.counters
        target[key] = _inside(entry["index"], columns if entry["per_tenant"] else 1, size)
    for entry in description["histograms"]:
        bounds = tuple(float(b) for b in entry["bounds"])
        index = _inside(entry["index"], len(bounds) + 2, size)
        plan.histograms[str(entry["name"]), _labels(entry["labels"])] = HistogramSpan(index, bounds)
    return plan


def _labels(raw: Mapping[str, Any]) -> Labels:
    return tuple((str(k), str(v)) for k, v in raw.items())


def _inside(raw: Any, width: int, size: int) -> int:
    index = int(raw)
    if index < 0 or index + width > size:
        raise ValueError(f"value at {index}..{index + width} lies outside a stats vector of {size}")
    return index


class Histogram:
    """A writer's handle on one histogram: an observation is two element stores. `span` is where they go."""

    __slots__ = ("_array", "_bounds", "_edges", "_index", "_sum", "_values", "span")

    def __init__(self, values: memoryview[float], array: NDArray[np.float64], span: HistogramSpan) -> None:
        self._values, self._array, self._index, self.span = values, array, span.index, span
        self._bounds, self._edges = list(span.bounds), np.array(span.bounds)
        self._sum = span.index + len(span.bounds) + 1

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value` (in the family's unit) `count` times."""
        values = self._values
        values[self._index + bisect_left(self._bounds, value)] += count
        values[self._sum] += value * count

    def observe_many(self, values: Sequence[float] | NDArray[np.float64]) -> None:
        """Count every one of several values."""
        if len(values) <= _FEW:
            for value in values.tolist() if isinstance(values, np.ndarray) else values:
                self.observe(value)
            return
        values = np.asarray(values, np.float64)
        width = len(self._bounds) + 1
        bins = np.bincount(self._edges.searchsorted(values), minlength=width)
        self._array[self._index : self._index + width] += bins
        self._array[self._sum] += values.sum()


def observer(histograms: Sequence[Histogram]) -> Callable[[Sequence[float]], None]:
    """A function that counts one observation of each of several histograms, in less time than one by one."""
    places = [(histogram._index, histogram._sum, histogram._bounds) for histogram in histograms]
    stored = histograms[0]._values

    def observe(values: Sequence[float]) -> None:
        for (index, total, bounds), value in zip(places, values, strict=True):
            stored[index + bisect_left(bounds, value)] += 1
            stored[total] += value

    return observe


class Stats:
    """The writer's private working copy. The ledger publishes it whole; nothing else writes it."""

    def __init__(self, plan: StatsPlan) -> None:
        self.plan = plan
        self.array: NDArray[np.float64] = np.zeros(plan.size)
        self.values: memoryview[float] = self.array.data.cast("B").cast("d")
        self.tenant_blocks = self.array[plan.tenant_blocks : plan.tenant_blocks + plan.columns]
        self.wait_clock = self.array[plan.wait_clock : plan.wait_clock + len(WaitCause)]

    def gauge(self, name: str) -> int:
        """Index of a published gauge; store with `stats.values[index] = x`."""
        return self.plan.gauges[name]

    def counter(self, name: str, **labels: str) -> int:
        """Index of a counter series; count with `stats.values[index] += x`. KeyError: not in the catalogue."""
        return self.plan.counters[name, tuple(labels.items())]

    def tenant_counter(self, name: str, **labels: str) -> NDArray[np.float64]:
        """The tenant columns of a per-tenant counter: a float64 view of shape (columns,)."""
        index = self.plan.tenant_counters[name, tuple(labels.items())]
        return self.array[index : index + self.plan.columns]

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Handle on a histogram series. KeyError if the catalogue has no such series."""
        return Histogram(self.values, self.array, self.plan.histograms[name, tuple(labels.items())])

    def inherit(self, plan: StatsPlan, values: NDArray[np.float64], columns: Mapping[int, int]) -> None:
        """Take over a predecessor's counters and histograms by name, tenant columns through `columns` (old -> new)."""
        for key, index in plan.counters.items():
            if key in self.plan.counters:
                self.array[self.plan.counters[key]] += values[index]
        for key, index in plan.tenant_counters.items():
            if key in self.plan.tenant_counters:
                for old, new in columns.items():
                    self.array[self.plan.tenant_counters[key] + new] += values[index + old]
        for key, span in plan.histograms.items():
            mine = self.plan.histograms.get(key)
            if mine is not None and mine.bounds == span.bounds:
                self.array[mine.index : mine.index + mine.size] += values[span.index : span.index + span.size]
