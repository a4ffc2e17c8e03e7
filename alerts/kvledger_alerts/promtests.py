"""The promtool unit tests as a document, from the cases. Every case's summary and runbook come from the table."""

from __future__ import annotations

from typing import Any

from kvledger_alerts import engine_cases, liveness_cases, pool_cases
from kvledger_alerts.cases import INTERVAL_SECONDS, Case, Firing
from kvledger_alerts.rows import alert_rows
from kvledger_alerts.table import Parameters, duration_text, runbook_url

CASES = (*pool_cases.CASES, *engine_cases.CASES, *liveness_cases.CASES)


def promtool_document(alert: str | None = None) -> dict[str, Any]:
    """All cases, or one alert's, for the unscaled rules, which lie beside it as `rules.yml`."""
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": duration_text(INTERVAL_SECONDS),
        "tests": [_test(case) for case in CASES if alert in (None, case.alert)],
    }


def _test(case: Case) -> dict[str, Any]:
    return {
        "name": f"{case.alert}: {case.title}",
        "interval": duration_text(INTERVAL_SECONDS),
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
