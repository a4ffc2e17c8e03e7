"""What a reader chooses, and what is marked on every graph: variables and annotations. No panel, no layout."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from kvledger.catalog import BY_NAME
from kvledger_dashboards.queries import marks
from kvledger_dashboards.queries.selection import AGENT_SELECTOR, CORE_LEGEND

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
ALL_VALUE = ".+"
_IDENTITY = BY_NAME["engine_up"].exposed_name
_AGENTS = BY_NAME["build_info"].exposed_name

Choices = tuple[tuple[str, str], ...]
"""Name and query of each variable; a later one is narrowed by the earlier ones."""
CHOICES: Choices = (
    ("job", f"label_values({_AGENTS}, job)"),
    ("instance", f'label_values({_AGENTS}{{job=~"$job"}}, instance)'),
    ("engine", f"label_values({_IDENTITY}{{{AGENT_SELECTOR}}}, engine)"),
    ("model", f'label_values({_IDENTITY}{{{AGENT_SELECTOR},engine=~"$engine"}}, model)'),
)
FLEET_CHOICES: Choices = (
    ("job", f"label_values(model:{_IDENTITY}:sum, job)"),
    ("model", f'label_values(model:{_IDENTITY}:sum{{job=~"$job"}}, model)'),
)
"""Recorded series know no instance and no engine."""


def datasource() -> builders.DatasourceVariable:
    """The Prometheus to ask; every panel, variable and annotation follows it."""
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def choice(name: str, query: str) -> builders.QueryVariable:
    """A variable of one label: several values at once, all of them to begin with, asked again with the time range."""
    return (
        builders.QueryVariable(name)
        .label(name)
        .datasource(DATASOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(ALL_VALUE)
        .current(models.VariableOption(text="All", value="$__all", selected=True))
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )


def address(name: str, url: str) -> builders.TextBoxVariable:
    """An address that links use: not shown, set when the boards are built, or with `var-NAME=` in the board's URL."""
    return (
        builders.TextBoxVariable(name)
        .label(name)
        .default_value(url)
        .current(models.VariableOption(text=url, value=url, selected=True))
        .hide(models.VariableHide.HIDE_VARIABLE)
    )


def firing_alerts(expr: str = marks.FIRING_ALERTS) -> builders.AnnotationQuery:
    """Marks the times at which an alert of ours was firing."""
    return _mark("Firing alerts", "red", expr, "{{alertname}}", "{{severity}} {{engine}} {{model}} {{instance}}")


def restarts() -> builders.AnnotationQuery:
    """Marks the engine starts that took over a predecessor's counters."""
    return _mark("Engine restarts", "blue", marks.RESTARTS, "engine restarted", CORE_LEGEND)


def leaks() -> builders.AnnotationQuery:
    """Marks the times at which a finding opened: a leak, or another defect that the ledger shows."""
    return _mark("Leaks and other findings", "purple", marks.LEAKS, "{{kind}}", CORE_LEGEND)


def _mark(name: str, color: str, expr: str, title: str, text: str) -> builders.AnnotationQuery:
    return (
        builders.AnnotationQuery()
        .name(name)
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color(color)
        .expr(expr)
        .title_format(title)
        .text_format(text)
    )
