"""Panels of what is lastingly wrong with the blocks."""

from __future__ import annotations

from grafana_foundation_sdk.builders import stat
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors, limits
from kvledger_dashboards.graphs import Graph
from kvledger_dashboards.panels import count_steps, stat_face, stat_panel
from kvledger_dashboards.queries import pool, verdicts

HEIGHT = 15
"""The legend has a line for every kind of finding and every invariant; all of them have to be seen."""
LEAKED = Graph(
    title="Leaked blocks",
    text="Blocks whose references exceed live tables and pins beyond the grace. From one on (dashed) they are never "
    "given back until the engine restarts; growing: restart before the pool is gone, with the evidence saved.",
    unit=units.Short,
    queries=[verdicts.LEAKED],
    limit=(1, colors.RED),
)
FINDINGS = Graph(
    title="Findings by kind",
    text="Open findings by what the ledger shows, and counts that are off. docs/findings.md says which defects show as "
    "which kind; the agent's `/v1/engines/ENGINE/findings` names blocks and owners.",
    unit=units.Short,
    queries=[verdicts.FINDINGS, verdicts.VIOLATIONS],
)
FINISHING = Graph(
    title="Ended, still holding blocks",
    text="Age of the oldest request of each engine core that has ended and still holds blocks; no line where there is "
    "none. Past the dashed line (30 s) somebody is told: see *Pinned blocks* for a transfer that needs them; without "
    "one it is a leak in the making.",
    unit=units.Seconds,
    queries=[pool.OLDEST_FINISHING],
    limit=(limits.FINISHING_SECONDS, colors.RED),
)
NOTES = Graph(
    title="Notes",
    text="Engine cores of which there is something to know that is no fault. `prefix_pinning`: one request's prefix "
    "keeps a quarter of the pool or more; a window, a shorter prefix or an engine of its own. `sharing_costs_more`: "
    "switch prefix caching off for that load. `kvledger status` says which prefix, and the figures.",
    unit=units.Short,
    queries=[verdicts.NOTES],
)


def open_findings(number: int) -> stat.Panel:
    """Whether there is anything at all."""
    text = "Open findings of all kinds. When it is not 0, go to the leaks row, which shows them by kind."
    face = stat_face(number, "Open findings", text, span=6)
    return stat_panel(face, [verdicts.OPEN_FINDINGS], steps_of=count_steps(colors.RED))
