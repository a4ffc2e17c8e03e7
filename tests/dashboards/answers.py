"""What a real Prometheus answers to the queries of the boards, whose windows and rules are scaled for tests."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvledger_alerts.table import Parameters, Scale
from tests.dashboards.boards import interpolated

SCRAPE_SECONDS = 1
FASTER = 12
PARAMETERS = Parameters(
    scale=Scale(factor=1 / FASTER, floor_seconds=3 * SCRAPE_SECONDS), interval_seconds=FASTER * SCRAPE_SECONDS
)
"""Of the generated configuration and rules: a scrape a second, windows and `for` a twelfth of what they are."""
WINDOW = PARAMETERS.scale.window(PARAMETERS.rate_seconds)
"""Of the recorded rates."""


class QueryFailed(AssertionError):
    """Prometheus refused a query."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and its values over time."""

    labels: Mapping[str, str]
    values: tuple[float, ...]


def choose(expr: str, *engines: str) -> str:
    """A query as Grafana sends it where only these engines are chosen, or all."""
    return interpolated(expr, job=[], instance=[], engine=list(engines), model=[], recorded_window=WINDOW)


@dataclass(slots=True, kw_only=True)
class Answers:
    """The answers of the Prometheus at this address, which has scraped since `began`."""

    prometheus: str = ""
    began: float = field(default_factory=time.time)

    def instant(self, expr: str, at: float) -> list[Series]:
        """The answer to an instant query."""
        found = self._ask("query", query=expr, time=f"{at:.3f}")["result"]
        return [Series(each["metric"], (float(each["value"][1]),)) for each in found]

    def over_time(self, expr: str, until: float) -> list[Series]:
        """The answer to a range query from the beginning, second by second back from `until`."""
        start = until - math.ceil(until - self.began)
        found = self._ask("query_range", query=expr, start=f"{start:.3f}", end=f"{until:.3f}", step="1")["result"]
        return [Series(each["metric"], tuple(float(value) for _, value in each["values"])) for each in found]

    def points(self, expr: str, begin: float, until: float) -> list[tuple[Mapping[str, str], list[tuple[float, str]]]]:
        """Labels and (seconds, value) points of each series of a range query, second by second."""
        found = self._ask("query_range", query=expr, start=f"{begin:.3f}", end=f"{until:.3f}", step="1")["result"]
        return [(each["metric"], [(at, value) for at, value in each["values"]]) for each in found]

    def label_values(self, selector: str, label: str) -> list[str]:
        """What a variable would list."""
        return list(self._ask(f"label/{label}/values", **{"match[]": selector}))

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise QueryFailed(f"{parameters}: {refused.read().decode()}") from refused
