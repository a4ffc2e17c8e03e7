"""What a reader chooses, and what is marked on every graph: variables and annotations. No panel, no layout."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from kvledger.catalog import BY_NAME
from kvledger_dashboards import queries

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
ALL_VALUE = ".+"
_IDENTITY = BY_NAME["engine_up"].exposed_name
_AGENTS = BY_NAME["build_info"].exposed_name

CHOICES: tuple[tuple[str, str], ...] = (
    ("job", f"label_values({_AGENTS}, job)"),
    ("instance", f'label_values({_AGENTS}{{job=~"$job"}}, instance)'),
    ("engine", f"label_values({_IDENTITY}{{{queries.AGENT_SELECTOR}}}, engine)"),
    ("model", f'label_values({_IDENTITY}{{{queries.AGENT_SELECTOR},engine=~"$engine"}}, model)'),
)
"""Name and query of each variable; a later one is narrowed by the earlier ones."""


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


def firing_alerts() -> builders.AnnotationQuery:
    """Marks the times at which an alert of ours was firing."""
    return (
        builders.AnnotationQuery()
        .name("Firing alerts")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color("red")
        .expr(queries.FIRING_ALERTS)
        .title_format("{{alertname}}")
        .text_format("{{severity}} {{engine}}")
    )


def restarts() -> builders.AnnotationQuery:
    """Marks the engine starts that took over a predecessor's counters."""
    return (
        builders.AnnotationQuery()
        .name("Engine restarts")
        .datasource(DATASOURCE)
        .enable(True)
        .icon_color("blue")
        .expr(queries.RESTARTS)
        .title_format("engine restarted")
        .text_format(queries.CORE_LEGEND)
    )
