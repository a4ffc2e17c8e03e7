"""Panels of waits: by cause as they end, those open now, the oldest, and their 95th percentile."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors
from kvledger_dashboards.panels import colored, graph_face, line_panel
from kvledger_dashboards.queries import service

LONG_SECONDS = 30.0
"""A wait that has lasted so long is longer than most clients' patience."""


def by_cause(number: int) -> timeseries.Panel:
    """How many waited on average, and for what."""
    text = (
        "Seconds waited per second by cause, as waits end: how many requests waited on average, and for what. `pool`: "
        "too few blocks. `batch_slots`, `token_budget`: the scheduler's limits. `step` alone is healthy."
    )
    face = graph_face(number, "Wait by cause", text, units.Short)
    return colored(line_panel(face, [service.WAIT_SECONDS], stacked=True), colors.CAUSES)


def now_by_cause(number: int) -> timeseries.Panel:
    """The queue."""
    text = (
        "Requests that wait now, by the one cause each waits for. A queue that grows under `pool` needs capacity or "
        "throttling; under `batch_slots` a higher `--max-num-seqs`."
    )
    face = graph_face(number, "Waiting now by cause", text, units.Short)
    return colored(line_panel(face, [service.WAITING_NOW], stacked=True), colors.CAUSES)


def oldest(number: int) -> timeseries.Panel:
    """What nobody serves."""
    text = (
        "Age of the oldest wait still open; the dashed line is 30 s. A line that climbs at one second per second is a "
        "request that nothing serves: see the verdict, then the explorer's page *Requests* for who it is."
    )
    face = graph_face(number, "Oldest open wait", text, units.Seconds)
    return colored(line_panel(face, [service.OLDEST_WAIT], limit=(LONG_SECONDS, colors.RED)), colors.CAUSES)


def p95(number: int) -> timeseries.Panel:
    """The slow end of the waits that ended."""
    text = (
        "95th percentile of ended waits by cause, those of cancelled and refused requests included; no line where none "
        "ended. Dashed at 30 s. The highest line says what to change first: `pool` capacity, the others a limit of "
        "the scheduler."
    )
    face = graph_face(number, "Wait by cause, P95", text, units.Seconds)
    return colored(line_panel(face, [service.WAIT_P95], limit=(LONG_SECONDS, colors.RED)), colors.CAUSES)
