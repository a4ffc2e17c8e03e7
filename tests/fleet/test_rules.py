"""The fleet's recording rules: named by their level, over real families, true by promtool, asked by somebody."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvledger.families.family import PREFIX
from kvledger_alerts.build import GENERATED, generated_files, write
from kvledger_alerts.fleet_cases import CASES
from kvledger_alerts.fleet_rows import LEVELS, UnknownLabel, _now, fleet_rows, questions
from kvledger_alerts.rows import recording_rows
from kvledger_alerts.table import Parameters, Scale
from tests.fleet.files import PAGE, promtool

GOLDEN = Path(__file__).parents[1] / "golden" / "metrics.txt"
ROWS = {row.record: row.expression for row in fleet_rows(Parameters())}
QUESTIONS = questions(Parameters())


def metrics(expression: str) -> Iterator[str]:
    """The name of every metric in an expression."""

    def walk(node: Any) -> Iterator[str]:
        match node:
            case promql_parser.VectorSelector():
                assert node.name is not None
                yield node.name
            case promql_parser.MatrixSelector():
                yield from walk(node.vector_selector)
            case promql_parser.Call():
                for argument in node.args:
                    yield from walk(argument)
            case promql_parser.BinaryExpr():
                yield from walk(node.lhs)
                yield from walk(node.rhs)
            case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
                yield from walk(node.expr)
            case promql_parser.NumberLiteral():
                return
            case _:
                raise AssertionError(f"the walk does not know {type(node).__name__}")

    yield from walk(promql_parser.parse(expression))


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_rules_and_finds_what_the_cases_expect() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", "fleet_rules.yml", where=GENERATED)
    promtool("test", "rules", "fleet_rules_test.yml", where=GENERATED)


@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    ("line", "broken"),
    [
        pytest.param(r"sum by \(job, model\) \(\(\(kvl", "sum by (job) (((kvl", id="models mixed in a ratio"),
        pytest.param(r"\(\(kvledger_pool_capacity_blocks > 0\) and .*", "kvledger_pool_capacity_blocks)", id="unknown"),
        pytest.param(r" unless kvledger_engine_closed == 1", "", id="a clean stop is an outage"),
        pytest.param(r"max by \(job, model, cause\)", "sum by (job, model, cause)", id="ages added up"),
        pytest.param(r"rate\(kvledger_cost_total\[5m\]\)", "kvledger_cost_total", id="a counter without a rate"),
        pytest.param(r"sum by \(job, model, tenant\) \(kvl", "sum by (job, tenant) (kvl", id="a label lost"),
        pytest.param(r"count by \(job, model\)", "sum by (job, model)", id="cores counted by whether they live"),
    ],
)
def test_the_promtool_tests_notice(line: str, broken: str, tmp_path: Path) -> None:
    files = {name: text for name, text in generated_files().items() if name.startswith("fleet_")}
    defective = re.sub(line, broken, files["fleet_rules.yml"])
    assert defective != files["fleet_rules.yml"]
    write(tmp_path, files | {"fleet_rules.yml": defective})

    tested = subprocess.run(["promtool", "test", "rules", "fleet_rules_test.yml"], cwd=tmp_path, capture_output=True)

    assert tested.returncode == 1
    assert b"FAILED" in tested.stdout + tested.stderr


def test_every_rule_has_a_case_in_which_it_records_something() -> None:
    recorded = {record for case in CASES for record, expected in case.recorded.items() if expected}
    assert recorded == set(ROWS)


def test_a_name_says_level_metric_and_operation_and_the_level_says_which_labels_are_kept() -> None:
    for record, expression in ROWS.items():
        level, metric, operation = record.split(":")
        assert re.fullmatch(r"sum|count|max|ratio|rate5m", operation), record
        assert ("[5m]" in expression) == (operation == "rate5m"), record
        assert metric.startswith(PREFIX), record
        assert not metric.endswith("_total"), record
        kept = re.findall(r"by \(([^)]*)\)", expression)
        assert kept, record
        for labels in kept:
            assert labels.split(", ")[: len(LEVELS[level])] == list(LEVELS[level]), record


def test_no_rule_and_no_question_puts_a_number_where_nothing_is_known() -> None:
    for expression in (*ROWS.values(), *(q.recorded for q in QUESTIONS), *(q.raw for q in QUESTIONS)):
        assert not re.search(r"vector\(|absent|scalar\(|\bor\b", expression), expression


def test_rules_and_raw_questions_are_about_series_of_the_golden_page() -> None:
    families = text_string_to_metric_families(GOLDEN.read_text())
    exposed = {sample.name for family in families for sample in family.samples}
    for expression in (*ROWS.values(), *(q.raw for q in QUESTIONS)):
        assert set(metrics(expression)) <= exposed, expression


def test_a_recorded_question_reads_recorded_series_only() -> None:
    for question in QUESTIONS:
        assert set(metrics(question.recorded)) <= set(ROWS), question.title


def test_a_label_that_a_family_does_not_have_is_an_error() -> None:
    with pytest.raises(UnknownLabel, match=r"engine_up has no label \['tenant'\]"):
        _now("sum", "tenant", "engine_up")


def test_no_name_is_recorded_twice() -> None:
    alerts = [row.record for row in recording_rows(Parameters())]
    fleet = [row.record for row in fleet_rows(Parameters())]
    assert len({*alerts, *fleet}) == len(alerts) + len(fleet)


def test_a_scaled_window_is_in_the_name_too() -> None:
    scaled = Parameters(scale=Scale(factor=1 / 30, floor_seconds=3))
    records = {row.record for row in fleet_rows(scaled)}
    assert "model:kvledger_generation_tokens:rate10s" in records
    assert all("5m" not in q.raw + q.recorded for q in questions(scaled))


def test_the_page_shows_every_rule_and_every_question_that_reads_it() -> None:
    page = PAGE.read_text()
    for record in ROWS:
        assert f"`{record}`" in page, record
    for question in QUESTIONS:
        assert question.title in page, question.title
