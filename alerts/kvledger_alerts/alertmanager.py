"""The Alertmanager configuration as a document: who is told, and which alert silences which. Writes nothing.

`webhook_url` sends every notification to one address; without it the two receivers, `page` and `ticket`, are there
to be filled in.
"""

from __future__ import annotations

from typing import Any

from kvledger_alerts.causes import AGENT
from kvledger_alerts.rows import alert_rows
from kvledger_alerts.rules import alert_names
from kvledger_alerts.table import IDENTITY, Cause, Parameters, Severity, duration_text

GROUP_WAIT_SECONDS, GROUP_INTERVAL_SECONDS, REPEAT_SECONDS = 30.0, 300.0, 4 * 3600.0


def alertmanager_document(parameters: Parameters | None = None, *, webhook_url: str | None = None) -> dict[str, Any]:
    """Routes by severity, grouped by engine; inhibition from causes to what they explain."""
    scale = (parameters or Parameters()).scale
    receivers: list[dict[str, Any]] = [{"name": "ticket"}, {"name": "page"}]
    if webhook_url is not None:
        for receiver in receivers:
            receiver["webhook_configs"] = [{"url": webhook_url, "send_resolved": True}]
    return {
        "route": {
            "receiver": "ticket",
            "group_by": ["alertname", "instance", "engine", "rank"],
            "group_wait": scale.window(GROUP_WAIT_SECONDS),
            "group_interval": scale.window(GROUP_INTERVAL_SECONDS),
            "repeat_interval": duration_text(REPEAT_SECONDS),
            "routes": [{"receiver": "page", "matchers": [f'severity="{Severity.CRITICAL.value}"']}],
        },
        "inhibit_rules": _inhibitions(),
        "receivers": receivers,
    }


def _inhibitions() -> list[dict[str, Any]]:
    fed = "|".join(name for name in alert_names() if name != AGENT)
    rules = [
        _inhibition([f'severity="{Severity.CRITICAL.value}"'], ['severity="warning"'], ["alertname", *IDENTITY]),
        _inhibition([f'alertname="{AGENT}"', 'instance!=""'], [f'alertname=~"{fed}"'], ["job", "instance"]),
        _inhibition([f'alertname="{AGENT}"', 'instance=""'], [f'alertname=~"{fed}"'], ["job"]),
    ]
    return rules + [_explanation(cause, names) for cause, names in explained().items()]


def explained() -> dict[Cause, tuple[str, ...]]:
    """Every cause in the table, with the alerts that it explains, both in the table's order."""
    found: dict[Cause, dict[str, None]] = {}
    for row in alert_rows(Parameters()):
        for cause in row.explained_by:
            found.setdefault(cause, {})[row.name] = None
    return {cause: tuple(names) for cause, names in found.items()}


def _explanation(cause: Cause, names: tuple[str, ...]) -> dict[str, Any]:
    source = [f'alertname="{cause.alert}"']
    if cause.severity is not None:
        source.append(f'severity="{cause.severity.value}"')
    operator = "=" if len(names) == 1 else "=~"
    return _inhibition(source, [f'alertname{operator}"{"|".join(names)}"', *cause.only], list(cause.same))


def _inhibition(source: list[str], target: list[str], equal: list[str]) -> dict[str, Any]:
    return {"source_matchers": source, "target_matchers": target, "equal": equal}
