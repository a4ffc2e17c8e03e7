"""The Alertmanager configuration as a document: who is told, and which alert silences which. Writes nothing.

`webhook_url` sends every notification to one address; without it the two receivers, `page` and `ticket`, are there
to be filled in.
"""

from __future__ import annotations

from typing import Any

from kvledger_alerts.rules import alert_names
from kvledger_alerts.table import Parameters, Severity, duration_text

IDENTITY = ["job", "instance", "engine", "rank"]
CAUSES = ("KvledgerEngineDown", "KvledgerEngineFrozen", "KvledgerEngineStalled")
"""Each explains those after it, and the symptoms."""
SYMPTOMS = ("KvledgerPoolHighWatermark", "KvledgerPoolExhaustionPredicted", "KvledgerRejections")
AGENT = "KvledgerAgentAbsent"
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
    for position, cause in enumerate(CAUSES):
        explained = "|".join((*CAUSES[position + 1 :], *SYMPTOMS))
        rules.append(_inhibition([f'alertname="{cause}"'], [f'alertname=~"{explained}"'], IDENTITY))
    full = ['alertname="KvledgerPoolHighWatermark"', f'severity="{Severity.CRITICAL.value}"']
    rules.append(_inhibition(full, ['alertname="KvledgerPoolExhaustionPredicted"'], [*IDENTITY, "pool"]))
    return rules


def _inhibition(source: list[str], target: list[str], equal: list[str]) -> dict[str, Any]:
    return {"source_matchers": source, "target_matchers": target, "equal": equal}
