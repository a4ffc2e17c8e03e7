"""The fleet's rule file and its promtool tests as documents (valid in 2.42 and in 3). Writes nothing."""

from __future__ import annotations

from typing import Any

from kvledger_alerts.cases import INTERVAL_SECONDS
from kvledger_alerts.fleet_cases import CASES, FleetCase
from kvledger_alerts.fleet_rows import fleet_rows
from kvledger_alerts.table import Parameters, duration_text

GROUP = "kvledger-fleet"
RULES = "fleet_rules.yml"


def fleet_rules_document(parameters: Parameters | None = None) -> dict[str, Any]:
    """One group of its own: Prometheus evaluates it beside the alerts', which never wait for it."""
    parameters = parameters or Parameters()
    interval = parameters.scale.window(parameters.interval_seconds)
    rules = [{"record": row.record, "expr": row.expression} for row in fleet_rows(parameters)]
    return {"groups": [{"name": GROUP, "interval": interval, "rules": rules}]}


def fleet_tests_document() -> dict[str, Any]:
    """The cases, for the unscaled rules, which lie beside it."""
    interval = duration_text(INTERVAL_SECONDS)
    return {"rule_files": [RULES], "evaluation_interval": interval, "tests": [_test(case) for case in CASES]}


def _test(case: FleetCase) -> dict[str, Any]:
    return {
        "name": case.title,
        "interval": duration_text(INTERVAL_SECONDS),
        "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
        "promql_expr_test": [
            {"expr": record, "eval_time": case.at, "exp_samples": [_sample(record, *sample) for sample in expected]}
            for record, expected in case.recorded.items()
        ],
    }


def _sample(record: str, labels: str, value: float) -> dict[str, Any]:
    return {"labels": f"{record}{{{labels}}}", "value": value}
