"""The rules as generated: current, clean, over real names, fired and kept silent by promtool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kvledger import catalog
from kvledger.words import FindingKind
from kvledger_alerts.build import GENERATED, generated_files, main, stale, write, yaml_text
from kvledger_alerts.promtests import CASES, promtool_document
from kvledger_alerts.rows import CORRUPTION_KINDS, LEAK_KINDS, alert_rows, recording_rows
from kvledger_alerts.rules import alert_names, rules_document
from kvledger_alerts.table import Parameters, Scale, duration_text

GOLDEN = "".join((Path(__file__).parents[1] / "golden" / f"{name}.txt").read_text() for name in ("metrics", "scraped"))
"""Pages of engines with a ledger and of engines that are only scraped."""
RULES = [rule for group in rules_document()["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {row.record for row in recording_rows(Parameters())}
OVER_TIME = ("max_over_time", "min_over_time", "rate", "increase")


def promtool(*arguments: str, where: Path = GENERATED) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=where, capture_output=True, text=True)


def selectors(expression: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every metric of an expression, with the functions around it."""

    def walk(node: Any, around: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
        match node:
            case promql_parser.VectorSelector():
                assert node.name is not None
                yield node.name, around
            case promql_parser.MatrixSelector():
                yield from walk(node.vector_selector, around)
            case promql_parser.Call():
                for argument in node.args:
                    yield from walk(argument, (*around, node.func.name))
            case promql_parser.BinaryExpr():
                yield from walk(node.lhs, around)
                yield from walk(node.rhs, around)
            case promql_parser.AggregateExpr() | promql_parser.ParenExpr():
                yield from walk(node.expr, around)
            case promql_parser.NumberLiteral():
                return
            case _:
                raise AssertionError(f"the walk does not know {type(node).__name__}")

    yield from walk(promql_parser.parse(expression), ())


def test_the_committed_files_are_what_the_table_gives(tmp_path: Path) -> None:
    assert stale(GENERATED, generated_files()) == []
    assert main(["--check"]) == 0
    assert main(["--check", "--into", str(tmp_path)]) == 1


def other(value: object) -> Any:
    """A value of the same kind that differs."""
    match value:
        case Scale():
            return Scale(factor=3)
        case str():
            return f"{value}-else"
        case int() | float():
            return value + 1
        case _:
            raise AssertionError(f"a parameter of a new kind: {value!r}")


@pytest.mark.parametrize("name", [field.name for field in fields(Parameters)])
def test_every_parameter_is_in_the_rules(name: str) -> None:
    changed = replace(Parameters(), **{name: other(getattr(Parameters(), name))})
    assert rules_document(changed) != rules_document()


def test_other_parameters_give_other_files(tmp_path: Path) -> None:
    assert main(["--into", str(tmp_path), "--runbook-base", "https://wiki/kv/", "--webhook", "http://hook/"]) == 0
    rules = (tmp_path / "rules.yml").read_text()
    assert "runbook_url: https://wiki/kv/KvledgerBlockLeak\n" in rules
    assert "url: http://hook/" in (tmp_path / "alertmanager.yml").read_text()
    assert not (tmp_path / "rules_test.yml").exists()
    held = generated_files(Parameters(pressure_hold_seconds=600, agent_hold_seconds=45))
    fors = {rule["alert"]: rule.get("for") for rule in yaml.safe_load(held["rules.yml"])["groups"][0]["rules"][3:]}
    assert (fors["KvledgerPoolHighWatermark"], fors["KvledgerAgentAbsent"]) == ("10m", "45s")
    assert fors["KvledgerEngineDown"] == "1m"


def test_every_for_is_a_parameter() -> None:
    holds = Parameters(
        pressure_hold_seconds=11,
        exhaustion_hold_seconds=12,
        finding_hold_seconds=13,
        liveness_hold_seconds=14,
        rejection_hold_seconds=15,
        agent_hold_seconds=16,
    )
    assert {row.name: row.hold_seconds for row in alert_rows(holds)} == {
        "KvledgerPoolHighWatermark": 11,
        "KvledgerPoolExhaustionPredicted": 12,
        "KvledgerBlockLeak": 13,
        "KvledgerBlockCorruption": 13,
        "KvledgerEngineStalled": 14,
        "KvledgerEngineFrozen": 14,
        "KvledgerEngineDown": 14,
        "KvledgerRejections": 15,
        "KvledgerLedgerUnreadable": 14,
        "KvledgerAgentAbsent": 16,
    }
    assert {rule["for"] for rule in rules_document(holds)["groups"][0]["rules"] if "alert" in rule} == {
        f"{seconds}s" for seconds in range(11, 17)
    }


@pytest.mark.needs("promtool")
def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.needs("promtool")
def test_every_alert_fires_when_it_should_and_only_then() -> None:
    tested = promtool("test", "rules", "rules_test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.needs("promtool")
@pytest.mark.parametrize(
    ("alert", "line", "broken"),
    [
        pytest.param("KvledgerPoolHighWatermark", r"\n +and ignoring \(pool\) engine:\S+", "", id="usage alone"),
        pytest.param("KvledgerPoolHighWatermark", r">= 0.98", ">= 98", id="percent for ratio"),
        pytest.param("KvledgerPoolHighWatermark", r"\[2m\]", "[10s]", id="a failed scrape clears"),
        pytest.param("KvledgerPoolExhaustionPredicted", r"\n +and min_over_time\S+ < 0.3", "", id="headroom ignored"),
        pytest.param("KvledgerBlockLeak", r"\|pin_overdue", "", id="a kind forgotten"),
        pytest.param("KvledgerEngineStalled", r"min_over_time", "max_over_time", id="one bad sample is enough"),
        pytest.param("KvledgerEngineDown", r"kvledger_engine_up", "kvledger_engine_alive", id="a renamed metric"),
        pytest.param("KvledgerEngineDown", r"\n    for: 1m", "", id="a restart is an outage"),
        pytest.param("KvledgerEngineDown", r"\n +unless .*", "", id="a clean stop is an outage"),
        pytest.param("KvledgerEngineDown", r"== 1\n", ">= 0\n", id="any end is a clean one"),
        pytest.param("KvledgerRejections", r"\n +and increase.*>= 10", "", id="no minimum volume"),
        pytest.param("KvledgerRejections", r'\{reason!="draining"\}', "", id="a planned stop is trouble"),
        pytest.param("KvledgerAgentAbsent", r"\n +or absent.*", "", id="no target is fine"),
    ],
)
def test_the_promtool_tests_notice(alert: str, line: str, broken: str, tmp_path: Path) -> None:
    rules = generated_files()["rules.yml"]
    defective = re.sub(line, broken, rules)
    assert defective != rules
    write(tmp_path, {"rules.yml": defective, "tests.yml": yaml_text(promtool_document(alert))})
    assert promtool("check", "rules", "rules.yml", where=tmp_path).returncode == 0, "the defect must be one of meaning"

    tested = promtool("test", "rules", "tests.yml", where=tmp_path)

    assert tested.returncode == 1
    assert "FAILED" in tested.stdout + tested.stderr


def test_each_alert_has_a_case_that_fires_and_one_that_stays_silent() -> None:
    for name in alert_names():
        cases = [case for case in CASES if case.alert == name]
        assert any(any(case.moments.values()) for case in cases), name
        assert any(not any(case.moments.values()) for case in cases), name


def test_the_cases_use_series_of_the_golden_page_with_exactly_their_labels() -> None:
    families = text_string_to_metric_families(GOLDEN)
    known = {(s.name, frozenset(s.labels)) for family in families for s in family.samples}
    values = {(s.name, pair) for f in text_string_to_metric_families(GOLDEN) for s in f.samples
              for pair in s.labels.items()}  # fmt: skip
    for case in CASES:
        for series in case.series:
            if series.name == "up":  # a scrape's own
                continue
            assert (series.name, frozenset(series.labels)) in known, series
            assert {(series.name, pair) for pair in series.labels.items()} <= values, series


def test_the_cases_use_series_with_the_labels_of_the_catalogue() -> None:
    labels = {family.exposed_name: set(family.label_names) for family in catalog.FAMILIES}
    for series in (series for case in CASES for series in case.series if series.name != "up"):
        assert set(series.labels) == labels[series.name], series


def test_every_metric_in_a_rule_is_in_the_catalogue_recorded_or_the_scrapes_own() -> None:
    exposed = {family.exposed_name for family in catalog.FAMILIES}
    used = {name for rule in RULES for name, _ in selectors(rule["expr"])}
    assert used <= exposed | RECORDED | {"up"}
    assert used >= RECORDED, "a recording rule that nothing uses"


def test_no_alert_looks_at_a_single_scrape() -> None:
    for rule in ALERTS:
        for name, around in selectors(rule["expr"]):
            windowed = any(function in OVER_TIME for function in around)
            assert windowed or "absent" in around or name == "engine:kvledger_pool_pressure:any", (rule["alert"], name)


def test_unknown_is_never_turned_into_a_number() -> None:
    for rule in RULES:
        assert not re.search(r"vector\(|absent_over_time|scalar\(|or on\(\)", rule["expr"]), rule


def test_summaries_are_static_descriptions_name_the_engine_and_severity_is_the_only_label() -> None:
    for rule in ALERTS:
        assert "{{" not in rule["annotations"]["summary"]
        assert re.search(r"\$labels\.(engine|source|instance)", rule["annotations"]["description"])
        assert set(rule["labels"]) == {"severity"}
        assert rule["annotations"]["runbook_url"].endswith("/" + rule["alert"])


def test_a_description_uses_only_labels_that_its_alert_has() -> None:
    for row in alert_rows(Parameters()):
        named = set(re.findall(r"\$labels\.(\w+)", row.description))
        fired = [f for case in CASES if case.alert == row.name for firing in case.moments.values() for f in firing]
        had = {label for f in fired if f.labels["severity"] == row.severity for label in (*f.labels, *f.scraped)}
        assert named <= had, row.name


def test_every_kind_of_finding_belongs_to_one_alert() -> None:
    verdicts = (
        FindingKind.WAITING_WITHOUT_RUNNING,
        FindingKind.FROZEN_COUNTERS,
        FindingKind.DEFERRED_WITHOUT_PROGRESS,
    )
    kinds = [kind.word for kind in (*LEAK_KINDS, *CORRUPTION_KINDS, *verdicts)]
    assert sorted(kinds) == sorted(next(f for f in catalog.FAMILIES if f.name == "findings").labels[0].values or ())


def test_a_scale_shrinks_windows_holds_and_intervals_down_to_its_floor() -> None:
    (group,) = rules_document(Parameters(scale=Scale(factor=0.01, floor_seconds=3)))["groups"]
    down = next(rule for rule in group["rules"] if rule.get("alert") == "KvledgerEngineDown")
    assert (group["interval"], down["for"]) == ("3s", "600ms")
    assert "[3s]" in down["expr"]
    assert [duration_text(s) for s in (0, 0.0004, 0.75, 90, 120, 3600)] == ["0s", "0s", "750ms", "90s", "2m", "1h"]


@pytest.mark.parametrize("factor", [0, -1, float("inf"), float("nan")])
def test_a_senseless_scale_is_refused_with_the_value(factor: float) -> None:
    with pytest.raises(ValueError, match=str(factor)):
        Scale(factor=factor)


def test_the_generated_yaml_is_read_back_as_it_was_meant() -> None:
    assert yaml.safe_load((GENERATED / "rules.yml").read_text()) == rules_document()
