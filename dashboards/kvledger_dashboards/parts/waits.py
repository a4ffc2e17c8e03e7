"""Graphs of waits: by cause as they end, those open now, the oldest, their 95th percentile, and who can never run."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.graphs import Graph
from kvledger_dashboards.queries import service

BY_CAUSE = Graph(
    title="Wait by cause",
    text="Seconds waited per second by cause, as waits end: how many requests waited on average, and for what. `pool`: "
    "too few blocks. `batch_slots`, `token_budget`: the scheduler's limits; raise them. `step` alone is healthy.",
    unit=units.Short,
    queries=[service.WAIT_SECONDS],
    stacked=True,
    names=colors.CAUSES,
)
NOW_BY_CAUSE = Graph(
    title="Waiting now by cause",
    text="Requests that wait now, by the one cause each waits for. A queue that grows under `pool` needs capacity or "
    "throttling; under `batch_slots` a higher `--max-num-seqs`.",
    unit=units.Short,
    queries=[service.WAITING_NOW],
    stacked=True,
    names=colors.CAUSES,
)
OLDEST = Graph(
    title="Oldest open wait",
    text="Age of the oldest wait still open; at the dashed line (60 s) somebody is told. A line that climbs at one "
    "second per second is a request that nothing serves: see the verdict, then the explorer's page *Requests* for who "
    "it is.",
    unit=units.Seconds,
    queries=[service.OLDEST_WAIT],
    limit=(limits.OLDEST_WAIT_SECONDS, colors.RED),
    names=colors.CAUSES,
)
P95 = Graph(
    title="Wait by cause, P95",
    text="95th percentile of ended waits by cause, those of cancelled and refused requests included; no line where "
    "none ended. Past the dashed line (5 s) somebody is told. The highest line says what to change first: `pool` "
    "capacity, the others a limit of the scheduler.",
    unit=units.Seconds,
    queries=[service.WAIT_P95],
    limit=(limits.WAIT_P95_SECONDS, colors.RED),
    names=colors.CAUSES,
)
NEVER_FIT = Graph(
    title="Requests that never fit",
    text="Waiting requests that even an empty pool could not hold. From one on (dashed) all behind it may wait for "
    "ever: cancel it, and limit `max_tokens` and context at the gateway. More engines of the same size do not help.",
    unit=units.Short,
    queries=[service.NEVER_FIT],
    limit=(1, colors.RED),
)
