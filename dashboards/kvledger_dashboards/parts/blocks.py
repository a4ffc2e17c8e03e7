"""Panels of what the blocks are used for."""

from __future__ import annotations

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors
from kvledger_dashboards.panels import below, colored, graph_face, line_panel, over, stat_face, stat_panel
from kvledger_dashboards.queries import pool

SOON_SECONDS = 300.0


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
    return stat_panel(face, [pool.EXHAUSTION], steps_of=below(SOON_SECONDS, colors.RED))


def preemptions(number: int) -> timeseries.Panel:
    """Who had to give way."""
    text = (
        "Running requests that gave their blocks up to others. A few are normal in a full pool; many mean that work is "
        "done again and again: admit fewer (`--watermark`, `--max-num-seqs`) or add capacity."
    )
    return line_panel(graph_face(number, "Preemptions by mode", text, units.OpsPerSecond), [pool.PREEMPTIONS])


def failures(number: int) -> timeseries.Panel:
    """Allocations that found no block."""
    text = (
        "Allocations that the pool could not serve; each makes a request wait or others give way. Lasting: the pool is "
        "too small for what is admitted."
    )
    return line_panel(graph_face(number, "Allocation failures", text, units.OpsPerSecond), [pool.FAILURES])


def allocation(number: int) -> timeseries.Panel:
    """Time inside the allocator."""
    text = (
        "Time inside the allocator for one allocation: search, eviction, lock. It is part of every step. Past the "
        "dashed line (5 ms) with free blocks the allocator is the trouble, not the capacity: look at evictions."
    )
    face = graph_face(number, "Allocation time", text, units.Seconds)
    return line_panel(face, pool.ALLOCATION, limit=(0.005, colors.ORANGE))
