"""A fleet through prometheus-client's Collector protocol, every series anew: the oracle of the page's kept lines."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from kvledger_agent.exporters.families import PER_SCRAPE, answer, engine_families
from kvledger_agent.exporters.prometheus import add_series, metric_of
from kvledger_agent.fleet import Fleet


class FleetCollector(Collector):
    """Every engine family that at least one engine of the fleet reports, except those whose value is an age."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterator[Metric]:
        """The families in catalogue order, each with the series of all engines."""
        for family in engine_families():
            if family.name in PER_SCRAPE:
                continue
            metric = metric_of(family)
            for observation in self._fleet.observations:
                add_series(metric, family, observation, answer(observation, family) or {})
            if metric.samples:
                yield metric
