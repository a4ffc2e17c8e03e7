"""The Alertmanager configuration, asked of Alertmanager's own tool and of a running one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kvledger_alerts.alertmanager import alertmanager_document, explained
from kvledger_alerts.build import GENERATED
from kvledger_alerts.causes import AGENT
from kvledger_alerts.rows import alert_rows
from kvledger_alerts.rules import alert_names
from kvledger_alerts.table import Parameters
from tests.alerts.stack import Alertmanager

ENGINE = {"job": "kvledger", "instance": "agent:9470", "engine": "e", "rank": "0"}
SYMPTOMS = ("KvledgerPoolHighWatermark", "KvledgerPoolExhaustionPredicted", "KvledgerRejections")

pytestmark = pytest.mark.needs("alertmanager")


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["amtool", *arguments], cwd=GENERATED, capture_output=True, text=True)


def test_amtool_accepts_it() -> None:
    checked = amtool("check-config", "alertmanager.yml")
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(("severity", "receiver"), [("critical", "page"), ("warning", "ticket"), ("other", "ticket")])
def test_severity_decides_who_is_told(severity: str, receiver: str) -> None:
    routed = amtool(
        "config", "routes", "test", "--config.file=alertmanager.yml", f"--verify.receivers={receiver}",
        "alertname=KvledgerBlockLeak", f"severity={severity}", "engine=e",
    )  # fmt: skip
    assert routed.returncode == 0, routed.stdout + routed.stderr


def test_every_rule_of_inhibition_names_alerts_that_exist() -> None:
    named = set(re.findall(r"Kvledger\w+", str(alertmanager_document()["inhibit_rules"])))
    assert named == set(alert_names())


def test_an_explanation_is_an_alert_of_the_table_and_never_the_alert_itself() -> None:
    severities = {(row.name, row.severity) for row in alert_rows(Parameters())}
    for cause, names in explained().items():
        assert cause.alert in alert_names()
        assert cause.severity is None or (cause.alert, cause.severity) in severities
        assert cause.alert not in names


def test_no_two_alerts_explain_each_other() -> None:
    silences = {(cause.alert, name) for cause, names in explained().items() for name in names}
    assert not {(one, other) for one, other in silences if (other, one) in silences}


@pytest.mark.e2e
@pytest.mark.slow
def test_what_explains_silences_what_it_explains_and_nothing_else(tmp_path: Path) -> None:
    def alert(name: str, severity: str = "critical", **labels: str) -> dict[str, str]:
        return {"alertname": name, "severity": severity, **ENGINE, **labels}

    with Alertmanager(tmp_path, alertmanager_document()) as alertmanager:

        def inhibited(*alerts: dict[str, str]) -> set[tuple[str, str, str]]:
            """Of these alerts, those of which nobody is told: (alertname, severity, engine)."""
            return {(a["alertname"], a["severity"], a.get("engine", "")) for a in alertmanager.inhibited(alerts)}

        # Each question has an instance of its own, so that earlier alerts explain nothing.
        def here(instance: str, *alerts: dict[str, str]) -> set[tuple[str, str, str]]:
            return inhibited(*({**a, "instance": instance, "job": instance} for a in alerts))

        frozen = alert("KvledgerEngineFrozen")
        watermark, warning = alert("KvledgerPoolHighWatermark"), alert("KvledgerPoolHighWatermark", "warning")
        assert here("1", watermark, warning, {**warning, "engine": "other"}) == {
            ("KvledgerPoolHighWatermark", "warning", "e")
        }
        assert here(
            "2", alert("KvledgerEngineDown"), alert("KvledgerEngineFrozen"), alert("KvledgerEngineStalled")
        ) == {
            ("KvledgerEngineFrozen", "critical", "e"),
            ("KvledgerEngineStalled", "critical", "e"),
        }
        assert here("3", alert("KvledgerEngineFrozen"), *(alert(name, "warning") for name in SYMPTOMS)) == {
            (name, "warning", "e") for name in SYMPTOMS
        }
        assert here("4", alert("KvledgerEngineDown"), frozen, alert("KvledgerBlockLeak", "warning")) == {
            ("KvledgerEngineFrozen", "critical", "e")
        }
        assert here("5", alert("KvledgerEngineDown"), frozen, {**frozen, "engine": "other"}) == {
            ("KvledgerEngineFrozen", "critical", "e")
        }
        assert here("6", watermark | {"pool": "gpu"}, alert("KvledgerPoolExhaustionPredicted", "warning", pool="gpu"),
                    alert("KvledgerPoolExhaustionPredicted", "warning", pool="host")) == {
            ("KvledgerPoolExhaustionPredicted", "warning", "e")
        }  # fmt: skip
        waits = [alert("KvledgerWaitLong", "warning", cause=cause) for cause in ("pool", "batch_slots")]
        assert here("9", warning, *waits) == {("KvledgerWaitLong", "warning", "e")}, "only the wait for the pool"
        assert here("10", alert("KvledgerBlockLeak", "warning"), alert("KvledgerIdleHold", "warning"), warning) == {
            ("KvledgerIdleHold", "warning", "e")
        }
        agent = {"alertname": AGENT, "severity": "critical"}
        others = [alert(name) for name in alert_names() if name != AGENT]
        assert {name for name, _, _ in here("7", agent, *others)} == set(alert_names()) - {AGENT}
        nowhere = {**agent, "job": "8"}
        assert inhibited(nowhere, {**alert("KvledgerBlockLeak"), "job": "8", "instance": "8"}) == {
            ("KvledgerBlockLeak", "critical", "e")
        }
