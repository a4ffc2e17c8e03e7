"""A fleet as OpenTelemetry metrics: numbers through observable instruments, histograms as ready data points.

Needs the extra `otlp`; imported only when it is asked for. Sends nothing: `otlp_push` does.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from opentelemetry.metrics import CallbackOptions
from opentelemetry.metrics import Observation as Measurement
from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    MeterProvider,
    ObservableCounter,
    ObservableGauge,
)
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    CardinalityLimits,
    Gauge,
    Histogram,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from kvledger import catalog
from kvledger.families.family import Family, Kind, Scope
from kvledger_agent import process
from kvledger_agent.config import AgentConfig
from kvledger_agent.exporters.families import PER_SCRAPE, answer
from kvledger_agent.exporters.otlp_names import otlp_name, otlp_unit
from kvledger_agent.exporters.prometheus import ScrapeCollector, series_prefix
from kvledger_agent.exports import ExportTally
from kvledger_agent.fleet import Fleet
from kvledger_agent.observation import HistogramView, Identity, Labels

SERVICE = "kvledger-agent"
SCOPE = "kvledger"
UNKNOWN_START_NS = 0
MOST_SERIES = 1 << 20
"""Per instrument; the SDK's own limit of 2,000 would fold tenants of a large fleet together."""
_INSTANCES = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")
"""The name space that the semantic conventions give for instance ids made from names."""


def resource_of(config: AgentConfig) -> Resource:
    """The agent as a resource. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over what is found here.

    The instance id is the same after a restart: it is made from host, directory and port.
    """
    host = platform.node()
    own: dict[str, str] = {
        "service.name": SERVICE,
        "service.version": process.version(),
        "service.instance.id": str(uuid.uuid5(_INSTANCES, f"{host}/{config.directory}/{config.port}")),
        "host.name": host,
        "host.arch": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os.type": platform.system().lower(),
    }
    return Resource.create(own).merge(OTELResourceDetector().detect())


class Starts:
    """Since when each engine's counters count: its first start, where that is known.

    Counters outlive an engine's start, so a later one does not begin them anew; whoever sees the second start first
    cannot know when they began.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def note(self, identities: Iterable[Identity]) -> None:
        """Remember first starts, and forget engines that are gone."""
        found = {i.key: i.started_wall_ns for i in identities if i.epoch == 1 and i.started_wall_ns}
        keys = {i.key for i in identities}
        self._known = {k: v for k, v in (self._known | found).items() if k in keys}

    def of(self, engine: str, rank: str) -> int:
        """Wall-clock nanoseconds; `UNKNOWN_START_NS` where it is not known."""
        return self._known.get(f"{engine}:{rank}", UNKNOWN_START_NS)


class OtlpMetrics:
    """Turns fleets into `MetricsData`. One thread uses it.

    `started_ns` is the agent's own start by the wall clock, from which its own counters count.
    """

    def __init__(self, resource: Resource, *, started_ns: int) -> None:
        self._resource, self._started_ns, self._starts = resource, started_ns, Starts()
        self._fleet: Fleet | None = None
        self._own = ScrapeCollector(Fleet(round=0, sampled_ns=0, observations=(), sources=()), 0)
        self._engines: frozenset[Identity] = frozenset()
        self._provider: MeterProvider | None = None

    def collect(self, fleet: Fleet, *, wall_ns: int, tally: ExportTally) -> MetricsData | None:
        """The fleet's metrics, all as of `wall_ns`, the wall clock at its sample. None if there is nothing to say."""
        self._fleet, self._own = fleet, ScrapeCollector(fleet, fleet.sampled_ns, tally)
        identities = [observation.identity for observation in fleet.observations]
        self._starts.note(identities)
        if self._provider is None or frozenset(identities) != self._engines:
            self._renew(frozenset(identities))
        collected = self._reader.get_metrics_data()
        if collected is None or not collected.resource_metrics:
            return None
        (resource,) = collected.resource_metrics
        (scope,) = resource.scope_metrics
        numbers = [self._timed(metric, wall_ns) for metric in scope.metrics]
        full = replace(scope, metrics=[*numbers, *self._histograms(fleet, wall_ns)])
        return MetricsData(resource_metrics=[replace(resource, scope_metrics=[full])])

    def close(self) -> None:
        """Release the SDK's instruments."""
        if self._provider is not None:
            self._provider.shutdown()
            self._provider = None

    def _renew(self, engines: frozenset[Identity]) -> None:
        # The SDK keeps every series that it has ever seen: those of engines that are gone end with their provider.
        self.close()
        limits: CardinalityLimits = {ObservableCounter: MOST_SERIES, ObservableGauge: MOST_SERIES}
        self._engines, self._reader = engines, InMemoryMetricReader(cardinality_limits=limits)
        self._provider = MeterProvider(
            [self._reader], self._resource, exemplar_filter=AlwaysOffExemplarFilter(), shutdown_on_exit=False
        )
        meter = self._provider.get_meter(SCOPE, process.version())
        for family in catalog.FAMILIES:
            if family.kind is Kind.HISTOGRAM:
                continue
            make = meter.create_observable_counter if family.kind is Kind.COUNTER else meter.create_observable_gauge
            make(otlp_name(family), [self._callback(family)], otlp_unit(family), family.help)

    def _callback(self, family: Family) -> Callable[[CallbackOptions], Iterable[Measurement]]:
        names = family.label_names

        def measure(options: CallbackOptions) -> Iterator[Measurement]:
            for labels, value in self._series(family):
                yield Measurement(float(value), dict(zip(names, labels, strict=True)))

        return measure

    def _series(self, family: Family) -> Iterable[tuple[Labels, Any]]:
        """Labels and value of every series; a value is a number, or the view of a histogram."""
        if family.scope is Scope.AGENT or family.name in PER_SCRAPE:
            yield from self._own.series(family)
        elif self._fleet is not None:
            for observation in self._fleet.observations:
                prefix = series_prefix(family, observation)
                for labels, value in (answer(observation, family) or {}).items():
                    yield prefix + labels, value

    def _timed(self, metric: Metric, wall_ns: int) -> Metric:
        """The metric as of the sample, its counters from where they began."""
        data = metric.data
        if isinstance(data, Sum):
            counts = [replace(p, start_time_unix_nano=self._start(p), time_unix_nano=wall_ns) for p in data.data_points]
            return replace(metric, data=replace(data, data_points=counts))
        if not isinstance(data, Gauge):
            raise AssertionError(f"{metric.name} is neither a counter nor a gauge")
        values = [replace(p, start_time_unix_nano=0, time_unix_nano=wall_ns) for p in data.data_points]
        return replace(metric, data=replace(data, data_points=values))

    def _start(self, point: NumberDataPoint) -> int:
        attributes = point.attributes or {}
        if "engine" not in attributes:
            return self._started_ns
        return self._starts.of(str(attributes["engine"]), str(attributes["rank"]))

    def _histograms(self, fleet: Fleet, wall_ns: int) -> Iterator[Metric]:
        for family in catalog.stored_histograms():
            points = [self._point(family, labels, view, wall_ns) for labels, view in self._series(family)]
            if points:
                data = Histogram(data_points=points, aggregation_temporality=AggregationTemporality.CUMULATIVE)
                yield Metric(name=otlp_name(family), description=family.help, unit=otlp_unit(family), data=data)

    def _point(self, family: Family, labels: Labels, view: HistogramView, wall_ns: int) -> HistogramDataPoint:
        attributes = dict(zip(family.label_names, labels, strict=True))
        counts = [int(count) for count in view.buckets.tolist()]
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=self._starts.of(attributes["engine"], attributes["rank"]),
            time_unix_nano=wall_ns,
            count=sum(counts),
            sum=view.sum,
            bucket_counts=counts,
            explicit_bounds=list(view.bounds),
            min=None,  # type: ignore[arg-type]  # optional on the wire; the ledger does not keep extremes
            max=None,  # type: ignore[arg-type]
        )
