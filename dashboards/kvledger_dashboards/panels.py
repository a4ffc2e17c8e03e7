"""How a panel looks: stats, lines and stacks with the boards' legends. Knows no query, no text and no table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from kvledger_dashboards import colors
from kvledger_dashboards.queries.selection import Query
from kvledger_dashboards.variables import DATASOURCE

Kind = TypeVar("Kind", stat.Panel, table.Panel, timeseries.Panel)
LAST = "lastNotNull"
DASH = [10.0, 6.0]
CORES_HEIGHT = 11
"""Of a row whose legends name every engine core: as many as an agent usually has are to be seen."""

Steps = Sequence[tuple[float | None, str]]
PLAIN: Steps = ((None, "text"),)
"""No value is good or bad by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """What every panel states: a stable id (links and alerts refer to it), title, description, unit, and its size."""

    id: int
    title: str
    description: str
    unit: str
    span: int
    height: int


def dressed(panel: Kind, face: Face) -> Kind:
    """The panel with what every panel states, our data source, and the words for what is not known."""
    dressing = panel.id(face.id).title(face.title).description(face.description).unit(face.unit)
    return dressing.span(face.span).height(face.height).datasource(DATASOURCE).no_value("No data")


def stat_face(number: int, title: str, text: str, unit: str = units.NoUnit, *, span: int = 3) -> Face:
    """The face of a panel of numbers: eight of them, at their usual width, make a row."""
    return Face(id=number, title=title, description=text, unit=unit, span=span, height=4)


def graph_face(number: int, title: str, text: str, unit: str, *, span: int = 8, height: int = 8) -> Face:
    """The face of a graph: three of them, at their usual width, make a row; one wider than half of it is higher."""
    return Face(id=number, title=title, description=text, unit=unit, span=span, height=10 if span > 12 else height)


def cores_face(number: int, title: str, text: str, unit: str, *, span: int = 8) -> Face:
    """The face of a graph with a line for each engine core."""
    return graph_face(number, title, text, unit, span=span, height=CORES_HEIGHT)


def target(query: Query, ref_id: str) -> prometheus.Dataquery:
    """One query of a panel."""
    built = prometheus.Dataquery().datasource(DATASOURCE).expr(query.expr).legend_format(query.legend).ref_id(ref_id)
    if query.table:
        built = built.format(PromQueryFormat.TABLE)
    return built.instant() if query.instant else built.range()


def steps(values: Steps) -> dashboard_builders.ThresholdsConfig:
    """Colours from a value on; the first has no lower bound."""
    return (
        dashboard_builders.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in values])
    )


def count_steps(color: str) -> Steps:
    """Quiet at zero, `color` from one on."""
    return above(1, color)


def above(limit: float, color: str, *further: tuple[float, str]) -> Steps:
    """Quiet below `limit`, `color` from there on, then what comes further up."""
    return ((None, colors.QUIET), (limit, color), *further)


def below(limit: float, color: str) -> Steps:
    """`color` below `limit`, quiet from there on."""
    return ((None, color), (limit, colors.QUIET))


def stat_panel(face: Face, queries: Sequence[Query], *, steps_of: Steps = PLAIN) -> stat.Panel:
    """Numbers of now. Filled with colour if there are steps, plain text otherwise."""
    filled = len(steps_of) > 1
    panel = (
        dressed(stat.Panel(), face)
        .thresholds(steps(steps_of))
        .color_mode(common.BigValueColorMode.BACKGROUND_SOLID if filled else common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(common_builders.ReduceDataOptions().calcs([LAST]))
    )
    for ref_id, query in zip("ABCDEFGH", queries, strict=False):
        panel = panel.with_target(target(query, ref_id))
    return panel


def line_panel(
    face: Face,
    queries: Sequence[Query],
    *,
    stacked: bool = False,
    lowest: float | None = 0,
    highest: float | None = None,
    limit: tuple[float, str] | None = None,
) -> timeseries.Panel:
    """Lines from zero up, or a stack, with a legend: a table beside a wide panel, names below a narrow one.

    `limit` is a value and a colour: a dashed line at what should not be passed. A stack has no edges: the edge of a
    series that is zero would outline the one below it in a wrong colour.
    """
    panel = (
        dressed(timeseries.Panel(), face)
        .show_points(common.VisibilityMode.NEVER)
        .span_nulls(False)
        .line_width(0 if stacked else 1)
        .fill_opacity(60 if stacked else 0)
        .legend(_legend(wide=face.span >= 12))
        .tooltip(_tooltip())
    )
    if lowest is not None:
        panel = panel.min(lowest)
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    if highest is not None:
        panel = panel.max(highest)
    if limit is not None:
        style = common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(steps(((None, "transparent"), limit))).thresholds_style(style)
    for ref_id, query in zip("ABCDEFGH", queries, strict=False):
        panel = panel.with_target(target(query, ref_id))
    return panel


def colored(panel: timeseries.Panel, names: Mapping[str, str]) -> timeseries.Panel:
    """The same colour for the same series on every board and in every time range."""
    for name, color in names.items():
        panel = panel.override_by_name(name, [fixed(color)])
    return panel


def over(panel: timeseries.Panel, name: str, color: str, *, dashed: bool) -> timeseries.Panel:
    """Draw one series as a line over a stack; limits are dashed, measured values solid."""
    properties = [
        fixed(color),
        models.DynamicConfigValue(id_val="custom.stacking", value={"group": "A", "mode": "none"}),
        models.DynamicConfigValue(id_val="custom.fillOpacity", value=0),
        models.DynamicConfigValue(id_val="custom.lineWidth", value=2),
    ]
    if dashed:
        properties.append(
            models.DynamicConfigValue(id_val="custom.lineStyle", value={"dash": DASH, "fill": "dash"}),
        )
    return panel.override_by_name(name, properties)


def fixed(color: str) -> models.DynamicConfigValue:
    """An override's colour."""
    return models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})


def _legend(*, wide: bool) -> common_builders.VizLegendOptions:
    """A narrow panel's legend has no values: with them, the names of causes and reasons are cut off."""
    legend = common_builders.VizLegendOptions().show_legend(True)
    if wide:
        table = legend.display_mode(common.LegendDisplayMode.TABLE).placement(common.LegendPlacement.RIGHT)
        return table.calcs([LAST, "max"])
    return legend.display_mode(common.LegendDisplayMode.LIST).placement(common.LegendPlacement.BOTTOM)


def _tooltip() -> common_builders.VizTooltipOptions:
    return common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
