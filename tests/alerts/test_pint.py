"""The rules of pint, and of the mixins' own linters, over every rule: what parses and can still never work.

pint is a program in Go that cannot be had from a Python registry; each test names the check that it ports. What only a
live Prometheus knows (`promql/series`, `alerts/count`) is seen in the live drills.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import promql_parser as promql
import pytest

from kvledger import catalog
from kvledger.families.family import Kind
from kvledger_alerts.prometheus import SCRAPE_SECONDS
from kvledger_alerts.rows import alert_rows, recording_rows
from kvledger_alerts.rules import rules_document
from kvledger_alerts.runbook_pages import page_path
from kvledger_alerts.table import Parameters

RULES = [rule for group in rules_document()["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = [row.record for row in recording_rows(Parameters())]
CUMULATIVE = re.compile(r"_(total|bucket|sum|count)$")
RATES = {"rate", "increase"}
COMPARISONS = {">", "<", ">=", "<=", "==", "!="}
SET_OPERATORS = {"and", "or", "unless"}
BY_SERIES = {
    series: family
    for family in catalog.FAMILIES
    for series in (
        (f"{family.exposed_name}{suffix}" for suffix in ("_bucket", "_sum", "_count"))
        if family.kind is Kind.HISTOGRAM
        else (family.exposed_name,)
    )
}
SAYS_NO_NUMBER = {"KvledgerEngineStalled", "KvledgerEngineFrozen", "KvledgerEngineDown", "KvledgerLedgerUnreadable",
                  "KvledgerAgentAbsent", "KvledgerFamilyMissing"}  # fmt: skip
"""Alerts of a state that is so or is not."""

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
each_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])


def nodes(expression: str) -> Iterator[Any]:
    """Every node of an expression."""
    found: list[Any] = []

    def visit(node: Any) -> bool:
        found.append(node)
        return True

    promql.walk(promql.parse(expression), visit)
    return iter(found)


def of_kind(expression: str, kind: type) -> list[Any]:
    return [node for node in nodes(expression) if isinstance(node, kind)]


def selectors(expression: str) -> list[Any]:
    """Every selector, those within a range as well."""
    ranged = [node.vector_selector for node in of_kind(expression, promql.MatrixSelector)]
    plain = of_kind(expression, promql.VectorSelector)
    return [*plain, *(each for each in ranged if not any(each.prettify() == one.prettify() for one in plain))]


def without_parentheses(node: Any) -> Any:
    while isinstance(node, promql.ParenExpr):
        node = node.expr
    return node


def alternatives(node: Any) -> Iterator[Any]:
    """The parts that an alert can fire on: both sides of `or`, the left side of `and` and `unless`."""
    node = without_parentheses(node)
    if isinstance(node, promql.BinaryExpr) and str(node.op) in SET_OPERATORS:
        yield from alternatives(node.lhs)
        if str(node.op) == "or":
            yield from alternatives(node.rhs)
    else:
        yield node


@each_alert
def test_an_alert_compares_or_asks_for_absence(rule: dict[str, Any]) -> None:
    """alerts/comparison: an expression without a comparison fires as soon as the series is there."""
    for part in alternatives(promql.parse(rule["expr"])):
        while isinstance(part, promql.AggregateExpr):
            part = without_parentheses(part.expr)
        compares = isinstance(part, promql.BinaryExpr) and str(part.op) in COMPARISONS
        recorded = isinstance(part, promql.VectorSelector) and part.name in RECORDED
        absent = isinstance(part, promql.Call) and part.func.name == "absent"
        assert compares or recorded or absent, part.prettify()


@each_alert
def test_absence_is_waited_for_longer_than_two_scrapes(rule: dict[str, Any]) -> None:
    """alerts/absent: a start of Prometheus would fire it."""
    if "absent(" in rule["expr"]:
        assert rule["for"] in ("2m", "5m")


@each_rule
def test_counters_are_only_rated_and_gauges_never_are(rule: dict[str, Any]) -> None:
    """promql/counter, promql/rate: a lifetime total read as the present, and the rate of what goes up and down."""
    rated = {
        node.args[0].vector_selector.prettify()
        for node in of_kind(rule["expr"], promql.Call)
        if node.func.name in RATES
    }
    for selector in selectors(rule["expr"]):
        if selector.name in BY_SERIES:
            cumulative = bool(CUMULATIVE.search(selector.name))
            assert (selector.prettify() in rated) == cumulative, selector.prettify()


@each_rule
def test_a_window_holds_several_scrapes(rule: dict[str, Any]) -> None:
    """promql/rate: a rate over fewer than four scrapes is empty as soon as one fails."""
    for ranged in of_kind(rule["expr"], promql.MatrixSelector):
        assert ranged.range >= timedelta(seconds=4 * SCRAPE_SECONDS), ranged.prettify()


@each_rule
def test_a_matcher_names_labels_and_words_that_there_are(rule: dict[str, Any]) -> None:
    """promql/impossible, promql/series: a word that nobody exports never matches, and `!=` of it always does."""
    for selector in selectors(rule["expr"]):
        if selector.name not in BY_SERIES:
            continue
        family = BY_SERIES[selector.name]
        closed = {label.name: label.values for label in family.labels if label.values is not None}
        for matcher in selector.matchers.matchers:
            if matcher.name == "le":
                continue
            assert matcher.name in family.label_names, (selector.name, matcher.name)
            words = matcher.value.split("|")
            assert matcher.name not in closed or set(words) <= set(closed[matcher.name]), (selector.name, words)


@each_rule
def test_a_regular_expression_is_one(rule: dict[str, Any]) -> None:
    """promql/regexp: `=~` of a plain word hides that it is one, and anchors are there already."""
    regular = (promql.MatchOp.Re, promql.MatchOp.NotRe)
    for selector in selectors(rule["expr"]):
        for matcher in selector.matchers.matchers:
            if any(matcher.op == op for op in regular):
                assert re.search(r"[|*+?(\[]", matcher.value), matcher.value
                assert not matcher.value.startswith("^")
                assert not matcher.value.endswith("$")


@each_rule
def test_nothing_is_aggregated_by_a_list_that_drops_who_it_is_about(rule: dict[str, Any]) -> None:
    """promql/aggregate, promql/fragile: job, instance, engine and rank stay; topk changes its mind all the time."""
    for node in of_kind(rule["expr"], promql.AggregateExpr):
        assert str(node.op) in ("sum", "max", "min"), node.prettify()
        assert node.modifier is not None
        assert node.modifier.type == promql.AggModifierType.Without, node.prettify()
        assert not {"job", "instance", "engine", "rank"} & set(node.modifier.labels)


@each_rule
def test_a_division_by_zero_is_no_value(rule: dict[str, Any]) -> None:
    """promql/nan: 0/0 is NaN, which a recorded series would keep."""
    for node in of_kind(rule["expr"], promql.BinaryExpr):
        if str(node.op) == "/" and not isinstance(without_parentheses(node.rhs), promql.NumberLiteral):
            guards = of_kind(node.rhs.prettify(), promql.BinaryExpr)
            guarded = any(str(g.op) == ">" and g.rhs.prettify() == "0" for g in guards)
            assert guarded or "histogram_quantile" in node.prettify(), node.prettify()


@each_rule
def test_a_quantile_is_over_buckets(rule: dict[str, Any]) -> None:
    """promql/syntax of histograms: a quantile of anything without `le` is empty."""
    for node in of_kind(rule["expr"], promql.Call):
        if node.func.name == "histogram_quantile":
            assert all(s.name.endswith("_bucket") for s in selectors(node.args[1].prettify()))
            assert "without (class, le)" not in node.prettify()


@each_rule
def test_a_name_says_what_it_is(rule: dict[str, Any]) -> None:
    """rule/name: alerts by component, recorded series as level:metric:operation."""
    if "alert" in rule:
        assert re.fullmatch(r"Kvledger([A-Z][a-z]+)+", rule["alert"])
    else:
        assert re.fullmatch(r"(engine|pool):kvledger_[a-z_]+:[a-z0-9_]+", rule["record"])


@each_alert
def test_an_alert_says_what_where_how_much_and_where_to_read_on(rule: dict[str, Any]) -> None:
    """alerts/annotation, rule/link."""
    annotations = rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert re.search(r"\.(\{\{ end \}\})?$", annotations["description"])
    assert "$value" in annotations["description"] or rule["alert"] in SAYS_NO_NUMBER
    assert page_path(rule["alert"]).is_file()


def test_a_label_of_a_rule_is_none_of_a_series() -> None:
    """labels/conflict: it would overwrite what the series says."""
    ours = {name for row in alert_rows(Parameters()) for name, _ in row.labels} | {"severity"}
    assert not ours & {name for family in catalog.FAMILIES for name in family.label_names}


def test_no_rule_is_there_twice_and_each_comes_after_what_it_uses() -> None:
    """rule/duplicate, rule/dependency, group/interval."""
    (group,) = rules_document()["groups"]
    expressions = [rule["expr"] for rule in group["rules"]]
    assert len(set(expressions)) == len(expressions)
    known: set[str] = set()
    for rule in group["rules"]:
        used = {selector.name for selector in selectors(rule["expr"]) if selector.name in RECORDED}
        assert used <= known
        known |= {rule["record"]} if "record" in rule else set()
    assert group["interval"] == "15s"
