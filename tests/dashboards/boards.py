"""The committed boards, taken apart for tests: their queries with who asks them, and the selectors in each query."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import promql_parser as promql

from kvledger_dashboards.build import GENERATED

RATE_INTERVAL = timedelta(minutes=4, seconds=3)
"""Stands in for `$__rate_interval` where a query is only parsed: no query writes such a window by itself."""
RECORDED_WINDOW = "5m"
RATES = frozenset({"rate", "irate", "increase"})
CUMULATIVE = ("_total", "_bucket", "_sum", "_count")
BOARDS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text()) for path in GENERATED.glob("*.json")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One query of a board: who asks it (a panel, an annotation), and how."""

    board: str
    by: str
    ref_id: str
    expr: str
    legend: str
    instant: bool
    table: bool = False

    def __str__(self) -> str:
        return f"{self.board} / {self.by} / {self.ref_id}"


@dataclass(slots=True)
class Parsed:
    """What a query selects and aggregates by. `selectors` are all, `rated` the ranges under a rate."""

    selectors: list[promql.VectorSelector] = field(default_factory=list)
    rated: list[promql.MatrixSelector] = field(default_factory=list)
    by: set[str] = field(default_factory=set)


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """The panels that show something: not the rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def panel_queries() -> list[Asked]:
    """Every query of every panel of every board."""
    return [
        Asked(
            board=name,
            by=panel["title"],
            ref_id=target["refId"],
            expr=target["expr"],
            legend=target["legendFormat"],
            instant=bool(target.get("instant")),
            table=target.get("format") == "table",
        )
        for name, board in BOARDS.items()
        for panel in panels(board)
        for target in panel["targets"]
    ]


def annotation_queries() -> list[Asked]:
    """Every query of every annotation of every board."""
    return [
        Asked(board=name, by=each["name"], ref_id="annotation", expr=each["expr"], legend="", instant=False)
        for name, board in BOARDS.items()
        for each in board["annotations"]["list"]
    ]


def variable_selectors(name: str | None = None) -> Iterator[tuple[str, str, str]]:
    """(variable, selector, label) of every `label_values(selector, label)`, of one board or of all."""
    for board in BOARDS.values() if name is None else [BOARDS[name]]:
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                assert found, variable
                yield variable["name"], found[1], found[2]


def parsed(expr: str) -> Parsed:
    """Take a query apart, `$__rate_interval` put in."""
    found = Parsed()

    def visit(node: Any) -> bool:
        if isinstance(node, promql.Call) and node.func.name in RATES:
            found.rated.extend(node.args)
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            found.by.update(node.modifier.labels)
        elif isinstance(node, promql.VectorSelector):
            found.selectors.append(node)
        return True

    seconds = int(RATE_INTERVAL.total_seconds())
    promql.walk(promql.parse(expr.replace("$__rate_interval", f"{seconds}s")), visit)
    return found


def matchers(selector: promql.VectorSelector) -> dict[str, str]:
    """Label to operator and value, as written."""
    ops = promql.MatchOp
    signs = ((ops.Equal, "="), (ops.NotEqual, "!="), (ops.Re, "=~"), (ops.NotRe, "!~"))
    return {
        each.name: next(sign for op, sign in signs if op == each.op) + each.value for each in selector.matchers.matchers
    }


def interpolated(
    expr: str,
    *,
    job: list[str],
    instance: list[str],
    engine: list[str],
    model: list[str],
    scrape_seconds: int = 1,
    recorded_window: str = RECORDED_WINDOW,
) -> str:
    """The query as Grafana sends it: an empty choice is All; values are escaped twice, as regex and as string.

    `recorded_window` is that of the recorded rates, which rules scaled for a test have in their names.
    """
    chosen = {"job": job, "instance": instance, "engine": engine, "model": model}
    for name, values in chosen.items():
        escaped = [re.sub(r"([\\^$*+?.()|\[\]{}])", r"\\\\\1", value) for value in values]
        text = ".+" if not escaped else escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
        expr = expr.replace(f"${name}", text)
    expr = expr.replace(f":rate{RECORDED_WINDOW}", f":rate{recorded_window}")
    return expr.replace("$__rate_interval", f"{4 * scrape_seconds}s")
