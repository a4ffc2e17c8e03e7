"""What `bench.fleet_scale` simulates, and what it measures, as the rows of its table. Starts and asks nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bench.estimate import Estimate, estimate
from bench.fleet_scale_page import Measured

PROCESSES = 2
WATCHES = 3
FLEET_GROUP, ALERT_GROUP = "kvledger-fleet", "kvledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is simulated, and for how long: `history_seconds` are scraped before anything is measured."""

    engines: int = 200
    tenants: int = 16
    models: int = 4
    history_seconds: float = 45.0
    rounds: int = 9
    idle_seconds: float = 15.0

    @property
    def graph_seconds(self) -> float:
        """How far back there is something to draw when the questions are asked."""
        return self.history_seconds + WATCHES * self.idle_seconds


QUICK = Size(engines=20, history_seconds=45.0, rounds=3, idle_seconds=15.0)


@dataclass(slots=True)
class Figures:
    """What was measured, in the order of the windows."""

    page_bytes: int = 0
    failed_percent: list[float] = field(default_factory=list)
    series: list[float] = field(default_factory=list)
    recorded: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    cpu_percent: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    scrape_ms: list[float] = field(default_factory=list)
    groups_ms: dict[str, list[float]] = field(default_factory=lambda: {FLEET_GROUP: [], ALERT_GROUP: []})
    asked: dict[tuple[str, bool], list[tuple[float, float]]] = field(default_factory=dict)
    read: dict[str, tuple[float, float]] = field(default_factory=dict)


def facts_of(size: Size, figures: Figures) -> dict[str, Any]:
    """What was simulated, for the page."""
    return {
        "engines": size.engines,
        "tenants": size.tenants,
        "models": size.models,
        "graph_seconds": size.graph_seconds,
        "page_bytes": figures.page_bytes,
        "processes": PROCESSES,
    }


def rows_of(figures: Figures) -> tuple[Measured, ...]:
    """The table's rows: what the engines cost, then every question in both forms."""
    engines = (
        Measured(name="series in memory, all of Prometheus", unit="", estimate=estimate(figures.series)),
        Measured(name="of these, recorded for the fleet", unit="", estimate=estimate(figures.recorded)),
        Measured(name="samples taken per second", unit="", estimate=estimate(figures.samples)),
        Measured(name="a scrape, p50", unit="ms", estimate=estimate(figures.scrape_ms)),
        Measured(name="a scrape, p99", unit="ms", estimate=estimate(figures.scrape_ms, quantile=0.99)),
        Measured(name="scrapes that failed, in a minute", unit="%", estimate=estimate(figures.failed_percent)),
        Measured(name="resident memory of Prometheus", unit="MB", estimate=estimate(figures.memory_mb)),
        Measured(name="Prometheus, share of one core, unasked", unit="%", estimate=estimate(figures.cpu_percent)),
        *(
            Measured(name=f"evaluating the group `{group}`", unit="ms", estimate=estimate(taken))
            for group, taken in figures.groups_ms.items()
        ),
    )
    return (*engines, *(_answer(key, pairs, figures) for key, pairs in figures.asked.items()))


def _answer(key: tuple[str, bool], pairs: list[tuple[float, float]], figures: Figures) -> Measured:
    title, graph = key
    ratio: Estimate = estimate([raw / recorded for raw, recorded in pairs])
    return Measured(
        name=title,
        unit="×",
        estimate=ratio,
        raw_ms=estimate([raw for raw, _ in pairs]).value,
        recorded_ms=estimate([recorded for _, recorded in pairs]).value,
        graph=graph,
        read=figures.read[title],
    )
