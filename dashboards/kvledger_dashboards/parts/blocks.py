"""Panels of what the blocks are used for."""

from __future__ import annotations

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.graphs import Graph
from kvledger_dashboards.panels import below, colored, graph_face, line_panel, over, stat_face, stat_panel
from kvledger_dashboards.queries import pool

PREEMPTIONS = Graph(
    title="Preemptions by mode",
    text="Running requests that gave their blocks up to others. A few are normal in a full pool; many mean that work "
    "is done again and again: admit fewer (`--watermark`, `--max-num-seqs`) or add capacity.",
    unit=units.OpsPerSecond,
    queries=[pool.PREEMPTIONS],
)
FAILURES = Graph(
    title="Allocation failures",
    text="Allocations that the pool could not serve; each makes a request wait or others give way. Lasting: the pool "
    "is too small for what is admitted; admit fewer, or add capacity.",
    unit=units.OpsPerSecond,
    queries=[pool.FAILURES],
)
SWAPPED = Graph(
    title="Blocks swapped",
    text="Blocks copied to host memory (`out`) and back (`in`), with `--preemption swap`. As many in as out, all the "
    "time: requests take turns instead of running; admit fewer. Much more out than in: they are given up, not resumed.",
    unit="suffix: blocks/s",
    queries=[pool.SWAPPED],
)
ALLOCATION = Graph(
    title="Allocation time",
    text="Time inside the allocator for one allocation: search, eviction, lock. It is part of every step. Past the "
    "dashed line (5 ms) with free blocks the allocator is the trouble, not the capacity: look at evictions.",
    unit=units.Seconds,
    queries=pool.ALLOCATION,
    limit=(limits.ALLOCATION_SECONDS, colors.ORANGE),
)


def stack(number: int) -> timeseries.Panel:
    """Blocks by state under the capacity and both watermarks."""
    text = (
        "Blocks by state, stacked to the capacity. Active over the alert watermark: little is left for bursts; over "
        "the admission watermark nothing is admitted. Logical over active is what sharing saves. Active that stays "
        "high without running requests is a leak; otherwise scale out or throttle."
    )
    limits = [pool.CAPACITY, pool.ALERT_WATERMARK, pool.ADMISSION_WATERMARK]
    face = graph_face(number, "Blocks, stacked to capacity", text, units.Short, span=16)
    panel = line_panel(face, [*pool.BLOCKS, *limits, pool.LOGICAL, pool.SHARED], stacked=True)
    panel = colored(panel, colors.STATES)
    panel = over(panel, "capacity", colors.GREY, dashed=True)
    panel = over(panel, "alert watermark", colors.RED, dashed=True)
    panel = over(panel, "admission watermark", colors.ORANGE, dashed=True)
    panel = over(panel, "logical", colors.LILAC, dashed=False)
    return over(panel, "shared", colors.YELLOW, dashed=False)


def active_share(number: int, *, height: int = 8) -> timeseries.Panel:
    """How full each engine is."""
    text = (
        "Active blocks of each engine core as a share of its capacity, with the lowest alert watermark. One full "
        "engine among empty ones: look at the router before adding engines."
    )
    face = graph_face(number, "Active share of each engine", text, units.PercentUnit, height=height)
    panel = line_panel(face, [pool.ACTIVE_SHARE, pool.LOWEST_ALERT_WATERMARK], highest=1)
    return over(panel, "alert watermark", colors.RED, dashed=True)


def exhaustion(number: int, *, span: int = 3) -> stat.Panel:
    """How long until there is no room."""
    text = (
        "Time until the first pool has no headroom, at the last minute's growth. No data while none grows. Minutes: "
        "throttle now; the growth may also be a leak."
    )
    face = stat_face(number, "Until exhaustion", text, units.Seconds, span=span)
    return stat_panel(face, [pool.EXHAUSTION], steps_of=below(limits.EXHAUSTION_SECONDS, colors.RED))
