"""What a reader at night needs of a panel: what to do, limits that mean something, names that tell series apart."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import promql_parser as promql
import pytest

from kvledger_agent.verdict.thresholds import DEFAULT
from kvledger_alerts.table import Parameters
from kvledger_dashboards import limits
from tests.dashboards.boards import BOARDS, RATE_INTERVAL, Asked, panel_queries, panels

TEXTS: dict[str, str] = {panel["title"]: panel["description"] for board in BOARDS.values() for panel in panels(board)}
TO_DO = re.compile(
    r"\b(add|admit|ask|bound|cancel|compare|fewer|give|go|limit|look|lower|need|needs|page|plan|raise|read|restart"
    r"|roll back|scale out|see|shorten|shorter|show|shows|smaller|smooth|switch|take|tell|throttle|throttling|try|watch"
    r"|a (?:quota|larger|longer|higher|shorter|lower) ?[\w`-]*|its (?:engines?|budget|quota|requests|rate)\b)",
    re.IGNORECASE,
)
"""Words of a sentence that says what to do, or where to look next."""
LEAST_WORDS = 8
"""Of a sentence, or of a part of it, that says something."""


def sentences(text: str) -> list[str]:
    return [each for each in re.split(r"(?<=[.:;])\s+", text) if each]


@pytest.mark.parametrize("title", TEXTS)
def test_a_description_goes_on_from_what_is_shown_to_what_to_do(title: str) -> None:
    first, *rest = sentences(TEXTS[title])
    assert rest, f"{first!r} alone says what is shown, and not what to do when it is bad"
    assert TO_DO.search(" ".join(rest)), f"{' '.join(rest)!r}: what is to be done, or where is one to look?"


def test_no_sentence_stands_on_two_panels() -> None:
    """What fits every panel says nothing about any."""
    shown = Counter(each for text in TEXTS.values() for each in sentences(text) if len(each.split()) >= LEAST_WORDS)
    assert not {each for each, number in shown.items() if number > 1}


def test_a_limit_is_that_of_the_alert_or_of_the_verdict() -> None:
    alerts, verdict = Parameters(), DEFAULT
    assert {
        limits.FULL: alerts.critical_ratio,
        limits.EXHAUSTION_SECONDS: alerts.exhaustion_seconds,
        limits.WAIT_P95_SECONDS: alerts.wait_target_seconds,
        limits.OLDEST_WAIT_SECONDS: alerts.oldest_wait_seconds,
        limits.TTFT_SECONDS: alerts.ttft_target_seconds,
        limits.RELEASE_P95_SECONDS: alerts.release_target_seconds,
        limits.FINISHING_SECONDS: alerts.finishing_seconds,
        limits.REFUSED: alerts.rejection_ratio,
        limits.QUOTA_USED: alerts.quota_ratio,
        limits.BUSY: verdict.busy,
    }.items() <= {value: value for value in vars(limits).values() if isinstance(value, float)}.items()


@pytest.mark.parametrize("asked", [each for each in panel_queries() if not each.table], ids=str)
def test_a_legend_names_every_label_that_tells_the_series_of_a_query_apart(asked: Asked) -> None:
    """Two hosts may each have an engine of one name."""
    text = asked.expr.replace("$__rate_interval", f"{int(RATE_INTERVAL.total_seconds())}s")
    assert kept(promql.parse(text)) == set(re.findall(r"{{(\w+)}}", asked.legend))


def kept(node: Any) -> set[str]:
    """The labels that the series of an expression have: those that its outermost aggregation keeps."""
    match node:
        case promql.AggregateExpr() if node.modifier is not None:
            return set(node.modifier.labels)
        case promql.AggregateExpr() if str(node.op) in ("topk", "bottomk"):
            return kept(node.expr)
        case promql.AggregateExpr():
            return set()
        case promql.ParenExpr():
            return kept(node.expr)
        case promql.BinaryExpr():
            return kept(node.lhs) | kept(node.rhs)
        case promql.Call() if node.func.name == "histogram_quantile":
            return kept(node.args[1]) - {"le"}
        case promql.Call():
            return set().union(*(kept(argument) for argument in node.args))
        case _:
            return set()
