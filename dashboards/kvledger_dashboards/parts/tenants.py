"""Panels of tenants' shares of the pool and of the refusals."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards.panels import graph_face, line_panel
from kvledger_dashboards.queries import tenants


def blocks(number: int) -> timeseries.Panel:
    """Who holds the pool."""
    text = (
        "Active blocks of the ten tenants that hold most. One tenant with most of a full pool: throttle it, or give it "
        "a quota."
    )
    face = graph_face(number, "Blocks by tenant", text, units.Short, span=12)
    return line_panel(face, [tenants.BLOCKS], stacked=True)


def rejections(number: int) -> timeseries.Panel:
    """Who is refused."""
    text = (
        "Refusals of the ten tenants that are refused most. One tenant alone: its requests or its rate are wrong. All "
        "of them: the pool is short."
    )
    face = graph_face(number, "Rejections by tenant", text, units.RequestsPerSecond, span=12)
    return line_panel(face, [tenants.REJECTIONS], stacked=True)
