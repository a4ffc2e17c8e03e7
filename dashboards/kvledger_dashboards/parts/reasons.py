"""Panels of what limits each engine: verdict, reason and action in words, the reasons over time, and request time.

The words are those of `kvledger.reasons`; the sentences for people are made of them here.
"""

from __future__ import annotations

from grafana_foundation_sdk.builders import table, timeseries
from grafana_foundation_sdk.models import units

from kvledger.reasons import ROWS, ReasonRow
from kvledger.words import Action, Verdict
from kvledger_dashboards import colors
from kvledger_dashboards.links import CORE_IN_EXPLORER
from kvledger_dashboards.panels import Face, colored, graph_face, line_panel
from kvledger_dashboards.queries import verdicts
from kvledger_dashboards.tables import Column, Words, table_panel

HEIGHT = 12
ACTIONS = {
    Action.NONE: "Nothing",
    Action.SCALE_OUT: "Add capacity",
    Action.THROTTLE: "Throttle",
    Action.CHANGE_BLOCK_POLICY: "Change the block policy",
    Action.FIX_LEAK: "Fix the leak",
    Action.LOOK_DOWNSTREAM: "Look downstream",
}
UNKNOWN = "See what is missing"
"""Not to know is no reason to do nothing."""


def of_each(number: int) -> table.Panel:
    """Who is in trouble, why, and what to do."""
    text = (
        "What limits each engine core, by the last window of the agent (`--verdict-window`, 60 s), and the one "
        "thing to do. The page of its alert in the runbook says how. An engine that is missing here is not watched, or "
        "its agent is gone. *Open in the explorer* shows its requests and blocks, and which signals are missing of an "
        "unknown one."
    )
    columns = (
        Column(source="engine", title="Engine", width=150, url=(CORE_IN_EXPLORER, "Open in the explorer")),
        Column(source="rank", title="Rank", width=70),
        Column(source="instance", title="Agent", width=170),
        Column(source=verdicts.VERDICT_LABEL, title="Verdict", width=170, words=_verdicts()),
        Column(source="verdict_reason", title="Why", words=Words(text={_word(row): _said(row) for row in ROWS})),
        Column(source=verdicts.ACTION_LABEL, title="What to do", width=260, words=_actions()),
    )
    face = Face(id=number, title="Verdict of each engine", description=text, unit=units.NoUnit, span=24, height=HEIGHT)
    return table_panel(face, verdicts.REASON_OF_EACH, columns, sort="Engine", descending=False)


def over_time(number: int) -> timeseries.Panel:
    """How long it has been so."""
    text = (
        "Engine cores by the reason of their verdict, in the colour of the verdict's kind; a reason that nobody has is "
        "not drawn. One that comes and goes: watch it. One that stays: do what the table says."
    )
    face = graph_face(number, "Reasons over time", text, units.Short, span=12, height=HEIGHT)
    panel = line_panel(face, [verdicts.REASONS], stacked=True)
    return colored(panel, colors.REASONS)


def shares(number: int) -> timeseries.Panel:
    """Where request time goes."""
    text = (
        "Where the time of requests goes, averaged over the engine cores that have any: waits by cause, prefill, "
        "decode. The largest wait is what to change first; mostly decode: look at the compute, nothing else makes it "
        "faster."
    )
    face = graph_face(number, "Where request time goes", text, units.PercentUnit, span=12, height=HEIGHT)
    panel = line_panel(face, [verdicts.SHARES], stacked=True, highest=1)
    return colored(panel, colors.PARTS)


def _word(row: ReasonRow) -> str:
    return row.reason.word


def _said(row: ReasonRow) -> str:
    return row.says[0].upper() + row.says[1:]


def _verdicts() -> Words:
    text = {_word(row): row.verdict.word.replace("_", " ").capitalize() for row in ROWS}
    return Words(text=text, colors={_word(row): colors.VERDICTS[row.verdict.word] for row in ROWS})


def _actions() -> Words:
    return Words(text={_word(row): UNKNOWN if row.verdict is Verdict.UNKNOWN else ACTIONS[row.action] for row in ROWS})
