"""How a table looks: one row per series of an instant query, its labels and value as columns in a stated order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from kvledger_dashboards.panels import Face, dressed, target
from kvledger_dashboards.queries.selection import Query

VALUE, TIME = "Value", "Time"
_WORDS = models.MappingType.VALUE_TO_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What one label's values say to people: text, and a colour where the word has one."""

    text: Mapping[str, str]
    colors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        source: label of the query, or `Value`.
        title: what is shown above it.
        width: in pixels; None shares what is left.
        words: what its values say; None shows them as they are.
        url: where a cell leads to, with Grafana's `${__data.fields...}` in it, and what that link is called.
    """

    source: str
    title: str
    width: int | None = None
    words: Words | None = None
    url: tuple[str, str] | None = None


def table_panel(face: Face, query: Query, columns: Sequence[Column], *, sort: str, descending: bool) -> table.Panel:
    """The table. Every label that the query keeps has to be a column. `sort` is the title of the column to sort by."""
    panel = (
        dressed(table.Panel(), face)
        .show_header(True)
        .cell_height(common.TableCellHeight.SM)
        .with_target(target(query, "A"))
        .with_transformation(_organized(columns))
        .sort_by([common_builders.TableSortByFieldState().display_name(sort).desc(descending)])
    )
    for column in columns:
        if properties := list(_properties(column)):
            panel = panel.override_by_name(column.title, properties)
    return panel


def _organized(columns: Sequence[Column]) -> models.DataTransformerConfig:
    shown = [column.source for column in columns]
    return models.DataTransformerConfig(
        id_val="organize",
        options={
            "excludeByName": {name: True for name in (TIME, VALUE) if name not in shown},
            "indexByName": {name: place for place, name in enumerate(shown)},
            "renameByName": {column.source: column.title for column in columns},
        },
    )


def _properties(column: Column) -> list[models.DynamicConfigValue]:
    made = []
    if column.width is not None:
        made.append(models.DynamicConfigValue(id_val="custom.width", value=column.width))
    if column.words is not None:
        made.append(models.DynamicConfigValue(id_val="mappings", value=[_mapping(column.words)]))
    if column.words is not None and column.words.colors:
        made.append(
            models.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-background", "mode": "basic"})
        )
    if column.url is not None:
        url, title = column.url
        made.append(
            models.DynamicConfigValue(id_val="links", value=[{"title": title, "url": url, "targetBlank": True}])
        )
    return made


def _mapping(words: Words) -> dict[str, object]:
    options = {
        value: {"text": text, "index": place, **({"color": words.colors[value]} if value in words.colors else {})}
        for place, (value, text) in enumerate(words.text.items())
    }
    return {"type": _WORDS.value, "options": options}
