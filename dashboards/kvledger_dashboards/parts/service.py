"""Panels of what clients see: refusals, endings, and how long the first token takes."""

from __future__ import annotations

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors
from kvledger_dashboards.panels import colored, graph_face, line_panel
from kvledger_dashboards.queries import service


def rejections(number: int) -> timeseries.Panel:
    """Who does not get in."""
    text = (
        "Requests refused before they held a block. `queue_full`: throttle or scale out. `exceeds_pool`, "
        "`context_too_long`: the client asks for more than this engine can ever do. `draining`: it is shutting down."
    )
    face = graph_face(number, "Rejections by reason", text, units.RequestsPerSecond)
    return line_panel(face, [service.REJECTIONS], stacked=True)


def endings(number: int) -> timeseries.Panel:
    """How those end that do."""
    text = (
        "Accepted requests as they end. `pool_exhausted`, `out_of_memory` and `engine_error` are failures of ours; "
        "many `cancelled` means that clients give up: look at TTFT."
    )
    face = graph_face(number, "Ended by reason", text, units.RequestsPerSecond)
    return colored(line_panel(face, [service.ENDINGS], stacked=True), colors.BAD_ENDINGS)


def first_token(number: int) -> timeseries.Panel:
    """Arrival to first token."""
    text = (
        "Arrival to first token of requests that got one. Rising with waits for the pool: capacity. Rising without "
        "waits: the steps are slow, see where a step's time goes."
    )
    return line_panel(graph_face(number, "Time to first token", text, units.Seconds), service.TTFT)
