"""Panels of engines and agents being alive."""

from __future__ import annotations

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors
from kvledger_dashboards.panels import above, count_steps, graph_face, line_panel, stat_face, stat_panel
from kvledger_dashboards.queries import agents, liveness

STALE_SECONDS = 5.0
"""From here on the agent's own page answers 503."""
FROZEN_SECONDS = 3.0
"""The least age at which a heartbeat makes an engine frozen."""


def down(number: int, *, span: int = 3) -> stat.Panel:
    """Engines gone without a clean stop."""
    text = (
        "Engine cores that are gone without a clean stop: killed or crashed. Read the end of the engine's log and the "
        "kernel's for an OOM kill."
    )
    return stat_panel(
        stat_face(number, "Engines down", text, span=span), [liveness.ENGINES_DOWN], steps_of=count_steps(colors.RED)
    )


def oldest_sample(number: int, *, span: int = 3) -> stat.Panel:
    """Whether the board shows the present."""
    text = (
        "Age of the oldest sample behind this board. Above a few seconds, what you see is the past: look at the agent."
    )
    face = stat_face(number, "Oldest sample", text, units.Seconds, span=span)
    return stat_panel(face, [agents.OLDEST_SAMPLE], steps_of=above(STALE_SECONDS, colors.ORANGE))


def heartbeat(number: int) -> timeseries.Panel:
    """Time since the last sign of life."""
    text = (
        "Time since the last heartbeat of engines that have work; an idle engine runs no code and has no line. A line "
        "that climbs past the dashed one (3 s) is a frozen or dead engine."
    )
    face = graph_face(number, "Heartbeat age", text, units.Seconds)
    return line_panel(face, [liveness.HEARTBEAT_AGE], limit=(FROZEN_SECONDS, colors.RED))


def engine_steps(number: int) -> timeseries.Panel:
    """How fast engines work."""
    text = (
        "Engine steps per second. Zero with work to do: stalled or frozen. Falling under the same load: steps became "
        "slower, look at the accelerator."
    )
    return line_panel(graph_face(number, "Steps", text, units.OpsPerSecond), [liveness.STEPS])


def sample_age(number: int) -> timeseries.Panel:
    """How old what the agent knows is."""
    text = (
        "Age of the last good sample of each ledger; past the dashed line (5 s) the agent refuses to serve it. "
        "Climbing: the agent hangs, or that ledger cannot be read; the agent's log says why."
    )
    face = graph_face(number, "Age of the agent's samples", text, units.Seconds)
    return line_panel(face, [agents.SAMPLE_AGE], limit=(STALE_SECONDS, colors.ORANGE))
