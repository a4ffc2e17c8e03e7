"""The rule file as a document: the table's rows in Prometheus' words (valid in 2.42 and in 3). Writes nothing."""

from __future__ import annotations

from typing import Any

from kvledger_alerts.rows import alert_rows, recording_rows
from kvledger_alerts.table import AlertRow, Parameters, RecordingRow, runbook_url

GROUP = "kvledger"


def rules_document(parameters: Parameters | None = None) -> dict[str, Any]:
    """One group, so that alerts are evaluated after the recording rules that they use."""
    parameters = parameters or Parameters()
    scale = parameters.scale
    records = [_recorded(row) for row in recording_rows(parameters)]
    alerts = [_alert(row, parameters) for row in alert_rows(parameters)]
    interval = scale.window(parameters.interval_seconds)
    return {"groups": [{"name": GROUP, "interval": interval, "rules": [*records, *alerts]}]}


def alert_names() -> tuple[str, ...]:
    """Every alert's name once, in the table's order."""
    return tuple(dict.fromkeys(row.name for row in alert_rows(Parameters())))


def _recorded(row: RecordingRow) -> dict[str, str]:
    return {"record": row.record, "expr": row.expression}


def _alert(row: AlertRow, parameters: Parameters) -> dict[str, Any]:
    rule: dict[str, Any] = {"alert": row.name, "expr": row.expression}
    if row.hold_seconds:
        rule["for"] = parameters.scale.hold(row.hold_seconds)
    rule["labels"] = {"severity": row.severity.value, **dict(row.labels)}
    rule["annotations"] = {
        "summary": row.summary,
        "description": row.description,
        "runbook_url": runbook_url(row.name, parameters.runbook_base),
    }
    return rule
