"""Catalogue families filled from a fleet, through prometheus-client's Collector protocol. Never touches a ledger."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvledger import catalog
from kvledger.clock import NS_PER_SECOND
from kvledger.families.family import Family, Kind, Scope
from kvledger_agent import process
from kvledger_agent.exporters.families import Answer
from kvledger_agent.exports import ExportTally
from kvledger_agent.fleet import Fleet, SourceHealth
from kvledger_agent.observation import HistogramView, Labels, Observation


class ScrapeCollector(Collector):
    """What depends on the moment of the scrape: heartbeat ages, and the agent about itself."""

    def __init__(self, fleet: Fleet, now_ns: int, tally: ExportTally | None = None) -> None:
        self._fleet, self._now_ns, self._tally = fleet, now_ns, tally or ExportTally()

    def collect(self) -> Iterator[Metric]:
        """Engine ages first, then the agent's own families, in catalogue order."""
        for family in catalog.FAMILIES:
            metric = metric_of(family)
            for labels, value in self.series(family):
                metric.add_sample(family.exposed_name, dict(zip(family.label_names, labels, strict=True)), value)
            if metric.samples:
                yield metric

    def series(self, family: Family) -> Iterable[tuple[Labels, float]]:
        """All label values and the value of every series of one such family; none of any other."""
        if family.name == "engine_heartbeat_age_seconds":
            return [(_common(o), age) for o in self._fleet.observations if (age := self._heartbeat_age(o)) is not None]
        if family.name in _PROCESS:
            return [_PROCESS[family.name]()]
        if family.name in _EXPORTS:
            return [((), float(_EXPORTS[family.name](self._tally)))]
        known = _SOURCE.get(family.name)
        if known is None:
            return []
        return [((s.source,), value) for s in self._fleet.sources if (value := known(s, self._now_ns)) is not None]

    def _heartbeat_age(self, observation: Observation) -> float | None:
        heartbeat_ns = observation.liveness.heartbeat_monotonic_ns
        if heartbeat_ns is None:
            return observation.liveness.heartbeat_age_seconds
        return max(0.0, (self._now_ns - heartbeat_ns) / NS_PER_SECOND)


def metric_of(family: Family) -> Metric:
    """An empty prometheus-client family. Its unit is stated only where the exposed name ends in it (OpenMetrics)."""
    name = family.exposed_name.removesuffix("_total") if family.kind is Kind.COUNTER else family.exposed_name
    unit = family.unit if family.unit and name.endswith("_" + family.unit) else ""
    return Metric(name, family.help, family.kind.value, unit)


def add_series(metric: Metric, family: Family, observation: Observation, said: Answer) -> None:
    """Add what an engine says of a family to the family's metric, in the order of `values_of`."""
    prefix = series_prefix(family, observation)
    for labels, value in (said or {}).items():
        named = dict(zip(family.label_names, prefix + labels, strict=True))
        if isinstance(value, HistogramView):
            _add_histogram(metric, family.exposed_name, named, value)
        else:
            metric.add_sample(family.exposed_name, named, value)


def series_prefix(family: Family, observation: Observation) -> Labels:
    """The label values that all of an engine's series of a family begin with: common ones, and the pool."""
    return _common(observation) + _scope(family, observation)


def values_of(said: Answer) -> list[float]:
    """The values of all samples that `add_series` adds, in the same order."""
    values: list[float] = []
    for value in (said or {}).values():
        if isinstance(value, HistogramView):
            counts = _cumulative(value)
            values += (*counts, counts[-1], value.sum)
        else:
            values.append(value)
    return values


def _common(observation: Observation) -> Labels:
    identity = observation.identity
    return identity.engine, identity.model, str(identity.rank)


def _scope(family: Family, observation: Observation) -> Labels:
    return (observation.identity.pool,) if family.scope is Scope.POOL else ()


def _add_histogram(metric: Metric, name: str, labels: Mapping[str, str], value: HistogramView) -> None:
    counts = _cumulative(value)
    for bound, count in zip((*map(_bound, value.bounds), "+Inf"), counts, strict=True):
        metric.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
    metric.add_sample(f"{name}_count", dict(labels), counts[-1])
    metric.add_sample(f"{name}_sum", dict(labels), value.sum)


def _cumulative(value: HistogramView) -> list[float]:
    return list(accumulate(value.buckets.tolist()))


def _bound(value: float) -> str:
    return repr(float(value))


def _age(source: SourceHealth, now_ns: int) -> float | None:
    return None if source.last_good_ns is None else max(0.0, (now_ns - source.last_good_ns) / NS_PER_SECOND)


_SOURCE: Mapping[str, Callable[[SourceHealth, int], float | None]] = {
    "agent_source_success": lambda s, now_ns: float(s.success),
    "agent_source_duration_seconds": lambda s, now_ns: s.duration_seconds,
    "agent_source_age_seconds": _age,
    "agent_events_lost_total": lambda s, now_ns: s.events_lost,
    "agent_reads_retried_total": lambda s, now_ns: s.reads_retried,
    "agent_ledger_overflows_total": lambda s, now_ns: s.overflows,
}

_PROCESS: Mapping[str, Callable[[], tuple[Labels, float]]] = {
    "build_info": lambda: ((process.version(), platform.python_version()), 1.0),
    "agent_cpu_seconds_total": lambda: ((), process.cpu_seconds()),
    "agent_memory_bytes": lambda: ((), float(process.memory_bytes())),
}

_EXPORTS: Mapping[str, Callable[[ExportTally], int]] = {
    "agent_otlp_exports_total": lambda tally: tally.tried,
    "agent_otlp_failures_total": lambda tally: tally.failed,
}
