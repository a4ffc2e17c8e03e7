"""Every alert, live: it fires on its scene, is told or explained as the table says, and resolves. Minutes last seconds.

`make alert-drills` runs all of them; `slots` and `frozen` are part of every test run.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvledger_alerts.alertmanager import alertmanager_document
from kvledger_alerts.build import target_files, write
from kvledger_alerts.rows import alert_rows
from kvledger_alerts.rules import alert_names
from tests.alerts.drills import DRILLED, DRILLS, QUICK, WATCHING, Drill
from tests.alerts.scenes import SMALL
from tests.alerts.stack import Alertmanager, Prometheus, Webhook, ask, wait_for
from tests.engine.server.process import EngineProcess
from tests.reliability.processes import AgentProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.needs("tmpfs"),
    pytest.mark.needs("prometheus"),
    pytest.mark.needs("alertmanager"),
]
PATIENCE_SECONDS = 90.0


class Chain:
    """Agent, Prometheus, Alertmanager and webhook, of one drill."""

    def __init__(self, stack: ExitStack, place: Path) -> None:
        self.ledgers = Path(tempfile.mkdtemp(prefix="kvledger-drill-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, self.ledgers)
        for name in ("alertmanager", "prometheus"):
            (place / name).mkdir()
        self.webhook = stack.enter_context(Webhook())
        document = alertmanager_document(DRILLED, webhook_url=self.webhook.url)
        self.alertmanager = stack.enter_context(Alertmanager(place / "alertmanager", document))
        self.agent = stack.enter_context(AgentProcess(self.ledgers, *WATCHING))
        self.prometheus = stack.enter_context(
            Prometheus(
                place / "prometheus",
                agent=self.agent.url,
                alertmanager=self.alertmanager.address,
                parameters=DRILLED,
            )
        )
        self._targets = place / "prometheus"

    def watch(self, agent: AgentProcess) -> None:
        """Scrape this agent instead."""
        write(self._targets, target_files(agents=[agent.url], alertmanagers=[self.alertmanager.address]))

    def firing(self) -> set[str]:
        """The names of the alerts that Prometheus says are firing."""
        alerts = ask(f"{self.prometheus.url}/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def explained(self) -> set[str]:
        """The names of the alerts that Alertmanager keeps to itself, since another explains them."""
        alerts: list[dict[str, Any]] = ask(f"{self.alertmanager.url}/api/v2/alerts")
        return {a["labels"]["alertname"] for a in alerts if a["status"]["inhibitedBy"]}

    def told(self, status: str, names: set[str]) -> None:
        """Wait until a notice of each has arrived."""
        missing, deadline = set(names), time.monotonic() + PATIENCE_SECONDS
        while missing:
            notice = self.webhook.notices.get(timeout=max(0.1, deadline - time.monotonic()))
            if notice["status"] == status:
                missing.discard(notice["labels"]["alertname"])


@pytest.fixture(name="chain")
def whole_chain(tmp_path: Path) -> Iterator[Chain]:
    with ExitStack() as stack:
        yield Chain(stack, tmp_path)


def quick_or_drill(name: str) -> Any:
    return pytest.param(DRILLS[name], id=name, marks=[] if name in QUICK else [pytest.mark.drill])


@pytest.mark.parametrize("drill", [quick_or_drill(name) for name in DRILLS])
def test_an_alert_fires_on_its_scene_is_told_or_explained_and_resolves(drill: Drill, chain: Chain) -> None:
    told, explained = set(drill.told), set(drill.explained)
    with drill.scene(chain.ledgers, chain.agent) as another:
        if another is not None:
            chain.watch(another)
        wait_for(lambda: chain.firing() >= told | explained, f"{told | explained} fire", PATIENCE_SECONDS)
        wait_for(lambda: chain.explained() >= explained, f"{explained} are explained", PATIENCE_SECONDS)
        chain.told("firing", told)
    with ExitStack() as mended:
        if drill.agent_killed:
            chain.agent.start()
            chain.watch(chain.agent)
        elif another is not None:
            chain.watch(chain.agent)
        else:
            mended.enter_context(EngineProcess(chain.ledgers, *SMALL))
        wait_for(lambda: not chain.firing() & (told | explained), f"{told | explained} are over", PATIENCE_SECONDS)
        chain.told("resolved", told)


def test_every_alert_has_a_drill_in_which_it_is_told() -> None:
    assert {name for drill in DRILLS.values() for name in drill.told} == set(alert_names())


def test_whatever_explains_an_alert_does_so_in_a_drill_that_tells_the_cause() -> None:
    causes = {row.name: {cause.alert for cause in row.explained_by} for row in alert_rows(DRILLED)}
    for title, drill in DRILLS.items():
        for name in drill.explained:
            assert causes[name] & set(drill.told), f"{title}: {name} is explained by none of {drill.told}"
