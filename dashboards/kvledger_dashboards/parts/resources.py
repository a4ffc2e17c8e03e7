"""Nine panels that locate a bottleneck: pool | scheduler | compute, of each utilisation, saturation and errors."""

from __future__ import annotations

from collections.abc import Iterator

from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits, links
from kvledger_dashboards.panels import colored, cores_face, graph_face, line_panel, over
from kvledger_dashboards.queries import resources


def panels(first: int, *, pool_board: str, requests_board: str) -> Iterator[timeseries.Panel]:
    """The grid, row by row; pool and scheduler lead on to the boards named."""
    columns = (links.board(pool_board, "Pool"), links.board(requests_board, "Requests, tenants, cost"), None)
    for row in (_utilisation(first), _saturation(first + 3), _errors(first + 6)):
        for panel, link in zip(row, columns, strict=True):
            yield panel if link is None else panel.links([link])


def _utilisation(first: int) -> Iterator[timeseries.Panel]:
    text = (
        "Active blocks of each engine core as a share of its capacity, the lowest alert watermark dashed. Full, and "
        "requests wait for blocks: more capacity or fewer requests. Full, and nobody waits: well used."
    )
    face = cores_face(first, "Pool: utilisation", text, units.PercentUnit)
    panel = line_panel(face, resources.POOL_USED, highest=1)
    yield over(panel, "alert watermark", colors.RED, dashed=True)
    text = (
        "Requests that run, and the most that did within the last minute. A flat line at `--max-num-seqs` while others "
        "wait for `batch_slots` and the pool has room: raise it."
    )
    panel = line_panel(
        cores_face(first + 1, "Scheduler: utilisation", text, units.Short),
        resources.SCHEDULER_USED,
    )
    yield colored(panel, {"running": colors.LIGHT_GREEN, "most in the last minute": colors.YELLOW})
    text = (
        "Share of the time that each engine core computes in steps. Past the dashed line (75 %) with a pool half empty "
        "and nobody waiting for blocks: the accelerator is the limit; add engines, blocks would not help."
    )
    face = cores_face(first + 2, "Compute: utilisation", text, units.PercentUnit)
    yield line_panel(face, resources.COMPUTE_USED, highest=1, limit=(limits.BUSY, colors.ORANGE))


def _saturation(first: int) -> Iterator[timeseries.Panel]:
    text = (
        "Requests that wait for blocks, or because others just gave way. Any for long: the pool is the bottleneck; see "
        "who holds it before you add engines."
    )
    face = graph_face(first, "Pool: saturation", text, units.Short)
    yield colored(line_panel(face, resources.POOL_WAITING, stacked=True), _causes(resources.POOL_CAUSES))
    text = (
        "Requests that wait for a limit of the scheduler or of a tenant. With free blocks: raise that limit; more "
        "capacity would stand idle."
    )
    face = graph_face(first + 1, "Scheduler: saturation", text, units.Short)
    yield colored(line_panel(face, resources.SCHEDULER_WAITING, stacked=True), _causes(resources.LIMITS))
    text = (
        "Time that a step computes. Rising with the number running: the batch saturates the accelerator. Rising "
        "alone: look at the accelerator (clocks, neighbours)."
    )
    yield line_panel(graph_face(first + 2, "Compute: saturation", text, units.Seconds), resources.COMPUTE_SATURATION)


def _errors(first: int) -> Iterator[timeseries.Panel]:
    text = (
        "What goes wrong for want of blocks, per second. Preemptions that last: work is done over and over; admit "
        "fewer. `exceeds_pool`: that request can never fit."
    )
    panel = line_panel(graph_face(first, "Pool: errors", text, units.OpsPerSecond), resources.POOL_ERRORS)
    names = {"allocation failures": colors.YELLOW, "preemptions": colors.ORANGE, "exceeds_pool": colors.PURPLE}
    yield colored(panel, names)
    text = (
        "Requests turned away by the queue or a quota, per second. `queue_full`, `queue_timeout`: more arrives than is "
        "served; throttle or scale out. Quotas: that tenant asks for more than it has."
    )
    face = graph_face(first + 1, "Scheduler: errors", text, units.RequestsPerSecond)
    yield line_panel(face, resources.SCHEDULER_ERRORS, stacked=True)
    text = (
        "Requests that ended because computing failed or took too long, per second. `engine_error`, `out_of_memory`: "
        "read the engine's log. `run_timeout`: too slow for its limit."
    )
    panel = line_panel(
        graph_face(first + 2, "Compute: errors", text, units.RequestsPerSecond), resources.COMPUTE_ERRORS, stacked=True
    )
    yield colored(panel, {name: colors.BAD_ENDINGS[name] for name in ("engine_error", "out_of_memory")})


def _causes(words: tuple[str, ...]) -> dict[str, str]:
    return {word: colors.CAUSES[word] for word in words}
