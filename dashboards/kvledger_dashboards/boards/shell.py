"""What all boards have in common: variables, annotations, links, rows. Knows no panel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import stat, table, timeseries
from grafana_foundation_sdk.models import dashboard as models

from kvledger_dashboards import links, variables
from kvledger_dashboards.queries import marks

ROW_IDS = 100
"""The rows' ids are its multiples; the ids of a row's panels follow the row's."""
Panel = stat.Panel | table.Panel | timeseries.Panel
Panels = Iterator[Panel]


def board(
    uid: str, title: str, description: str, rows: Mapping[str, Iterable[Panel]], places: links.Places
) -> builders.Dashboard:
    """A board about engines and agents, of open rows, title to panels, in the order given."""
    made = _bare(uid, title, description, places, variables.CHOICES)
    for mark in (variables.firing_alerts(), variables.restarts(), variables.leaks()):
        made = made.annotation(mark)
    return _filled(made, rows)


def fleet_board(
    uid: str, title: str, description: str, rows: Mapping[str, Iterable[Panel]], places: links.Places
) -> builders.Dashboard:
    """A board over recorded series: no engine and no instance to choose, and only what wakes somebody is marked."""
    made = _bare(uid, title, description, places, variables.FLEET_CHOICES)
    return _filled(made.annotation(variables.firing_alerts(marks.FLEET_ALERTS)), rows)


def _bare(
    uid: str, title: str, description: str, places: links.Places, choices: variables.Choices
) -> builders.Dashboard:
    """UTC, the last hour, not editable in Grafana."""
    made = (
        builders.Dashboard(f"kvledger / {title}")
        .uid(uid)
        .description(description)
        .tags([links.TAG])
        .readonly()
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("utc")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(variables.datasource())
        .link(links.menu())
        .link(links.explorer())
        .link(links.runbook())
    )
    for name, query in choices:
        made = made.with_variable(variables.choice(name, query))
    for name, url in ((links.EXPLORER, places.explorer), (links.RUNBOOK, places.runbook)):
        made = made.with_variable(variables.address(name, url))
    return made


def _filled(made: builders.Dashboard, rows: Mapping[str, Iterable[Panel]]) -> builders.Dashboard:
    for number, (name, panels) in enumerate(rows.items(), start=1):
        made = made.with_row(builders.Row(name).id(number * ROW_IDS))
        for panel in panels:
            made = made.with_panel(panel)
    return made
