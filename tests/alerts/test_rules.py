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
from kvledger.families.family import Kind
from kvledger.words import FindingKind
from kvledger_alerts.build import GENERATED, generated_files, main, stale, write, yaml_text
from kvledger_alerts.engine_rows import CORRUPTION_KINDS, LEAK_KINDS
from kvledger_alerts.promtests import CASES, promtool_documents
from kvledger_alerts.rows import alert_rows, recording_rows
from kvledger_alerts.rules import alert_names, rules_document
from kvledger_alerts.table import Parameters, Scale, duration_text

GOLDEN = "".join((Path(__file__).parents[1] / "golden" / f"{name}.txt").read_text() for name in ("metrics", "scraped"))
"""Pages of engines with a ledger and of engines that are only scraped."""
RULES = [rule for group in rules_document()["groups"] for rule in group["rules"]]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = {row.record for row in recording_rows(Parameters())}
HISTOGRAMS = {family.exposed_name for family in catalog.FAMILIES if family.kind is Kind.HISTOGRAM}
OVER_TIME = ("max_over_time", "min_over_time", "avg_over_time", "rate", "increase")


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


def family_of(series: str) -> str:
    """The family that a series belongs to: a histogram's parts are its own."""
    family = re.sub(r"_(bucket|sum|count)$", "", series)
    return family if family in HISTOGRAMS else series


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
        case 2.5:
            return 5.0  # a bound of the buckets, too
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
    assert not list(tmp_path.glob("rules_test*.yml"))
    held = generated_files(Parameters(pressure_hold_seconds=600, agent_hold_seconds=45))
    rules = yaml.safe_load(held["rules.yml"])["groups"][0]["rules"]
    fors = {rule["alert"]: rule.get("for") for rule in rules if "alert" in rule}
    assert (fors["KvledgerPoolHighWatermark"], fors["KvledgerAgentAbsent"]) == ("10m", "45s")
    assert fors["KvledgerEngineDown"] == "1m"


def test_every_for_is_a_parameter_but_those_of_the_burns_which_belong_to_their_windows() -> None:
    names = [field.name for field in fields(Parameters) if field.name.endswith("_hold_seconds")]
    given = Parameters(**{name: 10_000.0 + number for number, name in enumerate(names)})  # type: ignore[arg-type]
    holds = {row.hold_seconds for row in alert_rows(given) if not row.name.endswith("SloBurn")}
    assert holds == {10_000.0 + number for number in range(len(names))}


@pytest.mark.needs("promtool")
def test_promtool_has_nothing_to_say_about_the_rules() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.needs("promtool")
@pytest.mark.parametrize("file", list(promtool_documents()))
def test_every_alert_fires_when_it_should_and_only_then(file: str) -> None:
    tested = promtool("test", "rules", file)
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
        pytest.param("KvledgerIdleHold", r"\n +and min_over_time\(kvledger_engine_idle.*", "", id="work is idleness"),
        pytest.param("KvledgerIdleHold", r" - sum without \(pool, kind\) \(\S+", "", id="a pin is a hold"),
        pytest.param("KvledgerInvariantBroken", r"\n +or min_over_time\(kvledger_inv.*", "", id="too few is fine"),
        pytest.param("KvledgerSlowRelease", r"\n +and increase\(kvledger_release.*", "", id="one slow release"),
        pytest.param("KvledgerSlowRelease", r'\{cause=~"disconnect\|api\|timeout"\}', "", id="any end is a cancel"),
        pytest.param("KvledgerWaitLong", r"\n +and sum without \(class\) \(increase.*", "", id="one long wait"),
        pytest.param(
            "KvledgerOldestWaiter",
            r"min_over_time\(kvledger_oldest_w",
            "max_over_time(kvledger_oldest_w",
            id="a queue that moves",
        ),
        pytest.param(
            "KvledgerOldestWaiter",
            r'kvledger_oldest_wait_seconds\{cause!="paused"\}',
            "kvledger_oldest_wait_seconds",
            id="a pause is trouble",
        ),
        pytest.param(
            "KvledgerNeverFit",
            r"requests_never_fit\[1m\]\) > 0",
            "requests_never_fit[1m]) >= 0",
            id="who fits never fits",
        ),
        pytest.param("KvledgerPreemptionThrash", r"\n +and sum without \(mode\).*>= 10", "", id="one preemption"),
        pytest.param("KvledgerTenantAtQuota", r"\n +and ignoring \(cause\).*", "", id="a quota in use"),
        pytest.param("KvledgerPrefixHitCollapse", r"\n +and increase\(kvledger_prefix.*", "", id="no traffic"),
        pytest.param("KvledgerPrefixHitCollapse", r" > 0.2\)", " > 0.01)", id="a load that never shared"),
        pytest.param("KvledgerSharedPrefixPinning", r"> 0.5\n +and engine:\S+", "> 0.5", id="sharing alone"),
        pytest.param(
            "KvledgerSharedPrefixPinning", r"sum without \(group\) \(k", "max without (group) (k", id="one group alone"
        ),
        pytest.param(
            "KvledgerSharedPrefixPinning",
            r"max_over_time\(engine:kvledger_group_shared_blocks:ratio\[2m\]\)",
            "sum without (group) (max_over_time(kvledger_group_shared_blocks[2m])) / 24",
            id="what groups share by turns, added up",
        ),
        pytest.param(
            "KvledgerTtftSloBurn",
            r"\n +and engine:kvledger_ttft_late:ratio_rate5m > 0.72",
            "",
            id="a peak that is over",
        ),
        pytest.param(
            "KvledgerTtftSloBurn",
            r"\n +and sum without \(class\) \(increase\(kvledger_time.* >= 50",
            "",
            id="a handful of requests",
        ),
        pytest.param(
            "KvledgerAvailabilitySloBurn",
            r'finish_reason!="cancelled"',
            'finish_reason!=""',
            id="cancelling is an outage",
        ),
        pytest.param(
            "KvledgerAvailabilitySloBurn",
            r'reason=~"queue_full\|queue_timeout"\}\[1h',
            'reason!=""}[1h',
            id="a bad request is an outage",
        ),
        pytest.param(
            "KvledgerPoolBound", r"\n +and ignoring \(verdict_reason, verdict\) avg.*", "", id="comes and goes"
        ),
        pytest.param("KvledgerPoolBound", r"\|many_requests\|", "|", id="a reason forgotten"),
        pytest.param("KvledgerSchedulerBound", r"\[10m\]", "[1m]", id="a peak is a bound"),
        pytest.param("KvledgerSourceFailing", r"< 0.8", "< 1", id="a restart is a failing source"),
        pytest.param("KvledgerTelemetryLost", r"> 0.5\n +for: 5m", "> 0.5", id="one burst"),
        pytest.param("KvledgerFamilyMissing", r"\n +and max_over_time\(kvledger_cap.*", "", id="never had it"),
        pytest.param("KvledgerFamilyMissing", r"\n +and ignoring \(signal\).*", "", id="a removed engine"),
    ],
)
def test_the_promtool_tests_notice(alert: str, line: str, broken: str, tmp_path: Path) -> None:
    rules = generated_files()["rules.yml"]
    defective = re.sub(line, broken, rules)
    assert defective != rules
    tests = {name: yaml_text(document) for name, document in promtool_documents(alert).items()}
    write(tmp_path, {"rules.yml": alone(defective, alert), **tests})
    assert promtool("check", "rules", "rules.yml", where=tmp_path).returncode == 0, "the defect must be one of meaning"

    tested = promtool("test", "rules", *tests, where=tmp_path)

    assert tested.returncode == 1
    assert "FAILED" in tested.stdout + tested.stderr


def alone(rules: str, alert: str) -> str:
    """Of a rule file, one alert's rules and what they use: promtool evaluates every rule at every step."""
    document = yaml.safe_load(rules)
    (group,) = document["groups"]
    kept = [rule for rule in group["rules"] if rule.get("alert") == alert]
    used = {name for rule in kept for name, _ in selectors(rule["expr"])}
    group["rules"] = [*(rule for rule in group["rules"] if rule.get("record") in used), *kept]
    return yaml_text(document)


def test_every_alert_says_above_it_which_false_alarm_it_is_not() -> None:
    lines = generated_files()["rules.yml"].splitlines()
    named = [number for number, line in enumerate(lines) if "- alert:" in line]
    assert len(named) == len(ALERTS)
    assert all(re.match(r" +# silent: \w+", lines[number - 1]) for number in named)


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
    values |= {(f.exposed_name, (label.name, word)) for f in catalog.FAMILIES for label in f.labels
               for word in label.values or ()}  # fmt: skip
    values.add(("kvledger_group_shared_blocks", ("group", "sliding")))  # an engine calls its groups what it likes
    for case in CASES:
        for series in case.series:
            if series.name == "up":  # a scrape's own
                continue
            assert (series.name, frozenset(series.labels)) in known, series
            assert {(series.name, pair) for pair in series.labels.items()} <= values, series


def test_the_cases_use_series_with_the_labels_of_the_catalogue() -> None:
    labels = {family.exposed_name: set(family.label_names) for family in catalog.FAMILIES}
    for series in (series for case in CASES for series in case.series if series.name != "up"):
        assert set(series.labels) - {"le"} == labels[family_of(series.name)], series


def test_every_metric_in_a_rule_is_in_the_catalogue_recorded_or_the_scrapes_own() -> None:
    exposed = {family.exposed_name for family in catalog.FAMILIES}
    used = {family_of(name) for rule in RULES for name, _ in selectors(rule["expr"])}
    assert used <= exposed | RECORDED | {"up"}
    assert used >= RECORDED, "a recording rule that nothing uses"


def _smoothed() -> set[str]:
    """Recorded series that look over a window themselves."""
    return {
        row.record
        for row in recording_rows(Parameters())
        if all(any(function in OVER_TIME for function in around) for _, around in selectors(row.expression))
    }


SMOOTHED = _smoothed()


def test_no_alert_looks_at_a_single_scrape() -> None:
    for rule in ALERTS:
        for name, around in selectors(rule["expr"]):
            windowed = any(function in OVER_TIME for function in around)
            assert windowed or "absent" in around or name in SMOOTHED, (rule["alert"], name)


def test_unknown_is_never_turned_into_a_number() -> None:
    for rule in RULES:
        assert not re.search(r"vector\(|absent_over_time|scalar\(|or on\(\)", rule["expr"]), rule


def test_summaries_are_static_descriptions_name_the_engine_and_severity_is_the_only_label() -> None:
    for rule in ALERTS:
        assert "{{" not in rule["annotations"]["summary"]
        assert re.search(r"\$labels\.(engine|source|instance)", rule["annotations"]["description"])
        assert set(rule["labels"]) - {"window"} == {"severity"}, "a window tells the burns of one objective apart"
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
    kinds = [kind.word for kind in (*LEAK_KINDS, FindingKind.IDLE_HOLD, *CORRUPTION_KINDS, *verdicts)]
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
