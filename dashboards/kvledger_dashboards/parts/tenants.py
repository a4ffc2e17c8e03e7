"""Graphs of tenants' shares of the pool and of the refusals."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from kvledger_dashboards.graphs import Graph
from kvledger_dashboards.queries import tenants

BLOCKS = Graph(
    title="Blocks by tenant",
    text="Active blocks of the ten tenants that hold most. One tenant with most of a full pool: throttle it, or give "
    "it a quota. Many with a little each: the pool is small for the load.",
    unit=units.Short,
    queries=[tenants.BLOCKS],
    stacked=True,
)
REJECTIONS = Graph(
    title="Rejections by tenant",
    text="Refusals of the ten tenants that are refused most. One tenant alone: its requests or its rate are wrong; "
    "tell its owner. All of them: the pool is short.",
    unit=units.RequestsPerSecond,
    queries=[tenants.REJECTIONS],
    stacked=True,
)
