"""What all boards have in common: variables, annotations, the menu of boards, rows. Knows no panel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import stat, timeseries
from grafana_foundation_sdk.models import dashboard as models

from kvledger_dashboards import variables

TAG = "kvledger"
"""Of every board of ours; the menu of boards lists what carries it."""
ROW_IDS = 100
"""The rows' ids are its multiples; the ids of a row's panels follow the row's."""
Panel = stat.Panel | timeseries.Panel


def board(uid: str, title: str, description: str, rows: Mapping[str, Iterable[Panel]]) -> builders.Dashboard:
    """A board of open rows, title to panels, in the order given: UTC, the last hour, not editable in Grafana."""
    made = (
        builders.Dashboard(f"kvledger / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .refresh("30s")
        .time("now-1h", "now")
        .timezone("utc")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(variables.datasource())
        .annotation(variables.firing_alerts())
        .annotation(variables.restarts())
        .link(_menu())
    )
    for name, query in variables.CHOICES:
        made = made.with_variable(variables.choice(name, query))
    for number, (name, panels) in enumerate(rows.items(), start=1):
        made = made.with_row(builders.Row(name).id(number * ROW_IDS))
        for panel in panels:
            made = made.with_panel(panel)
    return made


def _menu() -> builders.DashboardLink:
    """Our other boards, keeping time and choices."""
    link = builders.DashboardLink("kvledger").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).keep_time(True).include_vars(True)
