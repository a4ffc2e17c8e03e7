"""The promtool unit tests as a document, from the cases. Every case's summary and runbook come from the table."""

from __future__ import annotations

from typing import Any

from kvledger_alerts import (
    agent_cases,
    engine_cases,
    pool_cases,
    request_cases,
    slo_cases,
    stuck_cases,
    verdict_cases,
)
from kvledger_alerts.cases import Case, Firing
from kvledger_alerts.rows import alert_rows
from kvledger_alerts.table import Parameters, duration_text, runbook_url

PARTS = (pool_cases, engine_cases, stuck_cases, request_cases, verdict_cases, slo_cases, agent_cases)
CASES = tuple(case for part in PARTS for case in part.CASES)


def promtool_documents(alert: str | None = None) -> dict[str, dict[str, Any]]:
    """File name -> all cases of one interval, or one alert's. The unscaled rules lie beside them as `rules.yml`."""
    found: dict[str, dict[str, Any]] = {}
    for case in CASES:
        if alert in (None, case.alert):
            interval = duration_text(case.interval_seconds)
            empty = {"rule_files": ["rules.yml"], "evaluation_interval": interval, "tests": []}
            found.setdefault(f"rules_test_{interval}.yml", empty)["tests"].append(_test(case))
    return found


def _test(case: Case) -> dict[str, Any]:
    return {
        "name": f"{case.alert}: {case.title}",
        "interval": duration_text(case.interval_seconds),
        "input_series": [{"series": series.selector, "values": series.values} for series in case.series],
        "alert_rule_test": [
            {"eval_time": at, "alertname": case.alert, "exp_alerts": [_expected(case.alert, f) for f in firing]}
            for at, firing in case.moments.items()
        ],
    }


def _expected(alert: str, firing: Firing) -> dict[str, Any]:
    summary = next(row.summary for row in alert_rows(Parameters()) if row.name == alert)
    return {
        "exp_labels": {**firing.labels, **firing.scraped},
        "exp_annotations": {
            "summary": summary,
            "description": firing.description,
            "runbook_url": runbook_url(alert, Parameters().runbook_base),
        },
    }
