"""Graphs of what clients see: refusals, endings, and how long the first token takes."""

from __future__ import annotations

from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.graphs import Graph
from kvledger_dashboards.queries import service

REJECTIONS = Graph(
    title="Rejections by reason",
    text="Requests refused before they held a block. `queue_full`: throttle or scale out. `exceeds_pool`, "
    "`context_too_long`: the client asks for more than this engine can ever do. `draining`: it is shutting down.",
    unit=units.RequestsPerSecond,
    queries=[service.REJECTIONS],
    stacked=True,
)
ENDINGS = Graph(
    title="Ended by reason",
    text="Accepted requests as they end. `pool_exhausted`, `out_of_memory` and `engine_error` are failures of ours: "
    "read the engine's log. Many `cancelled` means that clients give up: look at the time to first token.",
    unit=units.RequestsPerSecond,
    queries=[service.ENDINGS],
    stacked=True,
    names=colors.BAD_ENDINGS,
)
FIRST_TOKEN = Graph(
    title="Time to first token",
    text="Arrival to first token of requests that got one; the objective's target is dashed (2.5 s). Rising with waits "
    "for the pool: capacity. Rising without waits: the steps are slow, see where a step's time goes.",
    unit=units.Seconds,
    queries=service.TTFT,
    limit=(limits.TTFT_SECONDS, colors.ORANGE),
)
