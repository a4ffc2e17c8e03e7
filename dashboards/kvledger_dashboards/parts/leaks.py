"""Panels of what is lastingly wrong with the blocks."""

from __future__ import annotations

from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models import units

from kvledger_dashboards import colors
from kvledger_dashboards.panels import count_steps, graph_face, line_panel, stat_face, stat_panel
from kvledger_dashboards.queries import verdicts

HEIGHT = 15
"""The legend has a line for every kind of finding and every invariant; all of them have to be seen."""


def open_findings(number: int) -> stat.Panel:
    """Whether there is anything at all."""
    text = "Open findings of all kinds. When it is not 0, go to the leaks row, which shows them by kind."
    face = stat_face(number, "Open findings", text, span=6)
    return stat_panel(face, [verdicts.OPEN_FINDINGS], steps_of=count_steps(colors.RED))


def leaked(number: int) -> timeseries.Panel:
    """How much of the pool is gone."""
    text = (
        "Blocks whose references exceed live tables and pins beyond the grace. Never given back until the engine "
        "restarts; growing: restart before the pool is gone, with the evidence saved."
    )
    face = graph_face(number, "Leaked blocks", text, units.Short, span=12, height=HEIGHT)
    return line_panel(face, [verdicts.LEAKED])


def findings(number: int) -> timeseries.Panel:
    """What the ledger shows to be wrong."""
    text = (
        "Open findings by what the ledger shows, and counts that are off. docs/findings.md says which defects show as "
        "which kind; the agent's `/v1/engines/ENGINE/findings` names blocks and owners."
    )
    face = graph_face(number, "Findings by kind", text, units.Short, span=12, height=HEIGHT)
    return line_panel(face, [verdicts.FINDINGS, verdicts.VIOLATIONS])
