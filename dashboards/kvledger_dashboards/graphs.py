"""A graph as a row of a table: what it shows, says and compares with. A board gives it its id and its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from grafana_foundation_sdk.builders import timeseries

from kvledger_dashboards.panels import colored, graph_face, line_panel
from kvledger_dashboards.queries.selection import Query


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """One graph, the same on every board that shows it.

    `limit` is a value and the colour of the dashed line there; `names` are the colours of series.
    """

    title: str
    text: str
    unit: str
    queries: Sequence[Query]
    stacked: bool = False
    highest: float | None = None
    limit: tuple[float, str] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def at(self, number: int, *, span: int = 8, height: int = 8) -> timeseries.Panel:
        """The panel, with this id."""
        face = graph_face(number, self.title, self.text, self.unit, span=span, height=height)
        panel = line_panel(face, self.queries, stacked=self.stacked, highest=self.highest, limit=self.limit)
        return colored(panel, self.names)
