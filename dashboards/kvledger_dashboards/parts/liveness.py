"""Panels of engines and agents being alive."""

from __future__ import annotations

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.graphs import Graph
from kvledger_dashboards.panels import above, count_steps, stat_face, stat_panel
from kvledger_dashboards.queries import agents, liveness

HEARTBEAT = Graph(
    title="Heartbeat age",
    text="Time since the last heartbeat of engines that have work; an idle engine runs no code and has no line. A line "
    "that climbs past the dashed one (3 s) is a frozen or dead engine: take a stack of its process, then restart it.",
    unit=units.Seconds,
    queries=[liveness.HEARTBEAT_AGE],
    limit=(limits.HEARTBEAT_SECONDS, colors.RED),
)
STEPS = Graph(
    title="Steps",
    text="Engine steps per second. Zero with work to do: stalled or frozen. Falling under the same load: steps became "
    "slower, look at the accelerator.",
    unit=units.OpsPerSecond,
    queries=[liveness.STEPS],
)
SAMPLE_AGE = Graph(
    title="Age of the agent's samples",
    text="Age of the last good sample of each ledger; past the dashed line (5 s) the agent refuses to serve it. "
    "Climbing: the agent hangs, or that ledger cannot be read; the agent's log says why.",
    unit=units.Seconds,
    queries=[agents.SAMPLE_AGE],
    limit=(limits.STALE_SECONDS, colors.ORANGE),
)


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
    return stat_panel(face, [agents.OLDEST_SAMPLE], steps_of=above(limits.STALE_SECONDS, colors.ORANGE))
