"""Where the boards lead: to each other, to the explorer and to the runbook, with time and choices. No query."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models

TAG = "kvledger"
"""Of every board of ours; the menu of boards lists what carries it."""
EXPLORER, RUNBOOK = "explorer", "runbook"
"""Names of the variables that hold the addresses."""
CORE_IN_EXPLORER = f"${{{EXPLORER}}}/requests?engine=${{__data.fields.engine}}:${{__data.fields.rank}}"
"""The explorer's page of one engine core; for a table with the columns `engine` and `rank`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Addresses that differ from one installation to the next: of the explorer, and of the runbook's pages."""

    explorer: str = "http://127.0.0.1:8501"
    runbook: str = "http://127.0.0.1:9095/runbook/"


def menu() -> builders.DashboardLink:
    """All our boards, keeping time and choices."""
    link = builders.DashboardLink("kvledger boards").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    return link.as_dropdown(True).keep_time(True).include_vars(True)


def explorer() -> builders.DashboardLink:
    """The explorer, which reads the chosen engine from the address."""
    link = _outside("Explorer", f"${{{EXPLORER}}}", "apps", "The blocks, requests and findings of one engine, live")
    return link.include_vars(True)


def runbook() -> builders.DashboardLink:
    """The runbook's first page: the triage."""
    return _outside("Runbook", f"${{{RUNBOOK}}}", "doc", "What to do, alert by alert")


def board(uid: str, title: str) -> builders.DashboardLink:
    """From a panel to a board, with time and choices."""
    return builders.DashboardLink(title).url(f"/d/{uid}?${{__url_time_range}}&${{__all_variables}}")


def _outside(title: str, url: str, icon: str, tooltip: str) -> builders.DashboardLink:
    link = builders.DashboardLink(title).type(models.DashboardLinkType.LINK).url(url).icon(icon).tooltip(tooltip)
    return link.target_blank(True)
