"""All of it at once: a fault in a real engine fires in a real Prometheus, is routed, arrives, and is taken back."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

import pytest

from kvledger_alerts.alertmanager import alertmanager_document
from kvledger_alerts.rules import alert_names
from kvledger_alerts.table import Parameters, Scale
from tests.alerts.scenes import SMALL, Request, leak
from tests.alerts.stack import Alertmanager, Prometheus, Webhook, ask, wait_for
from tests.children import memory_directory
from tests.engine.server.process import EngineProcess
from tests.reliability.processes import AgentProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.needs("tmpfs"),
    pytest.mark.needs("prometheus"),
    pytest.mark.needs("alertmanager"),
]

SCALED = Parameters(scale=Scale(factor=1 / 30, floor_seconds=3))
"""A window of a minute is three seconds, a `for` of a minute two."""
NOTICE_SECONDS = 45.0
STEPS = ("--step-time", "base=10ms")


@dataclass(frozen=True)
class Live:
    """What a test talks to."""

    directory: Path
    agent: AgentProcess
    prometheus: Prometheus
    webhook: Webhook

    def engine(self, name: str, *flags: str) -> EngineProcess:
        """An engine of this name, seen by Prometheus as up."""
        process = EngineProcess(self.directory, "--name", name, *SMALL, *STEPS, *flags)
        try:
            wait_for(lambda: self.query(f'kvledger_engine_up{{engine="{name}"}} == 1'), f"{name} is scraped")
        except AssertionError:
            process.__exit__(None, None, None)
            raise
        return process

    def query(self, expression: str) -> list[object]:
        """The result of an instant query."""
        url = f"{self.prometheus.url}/api/v1/query"
        return list(ask(f"{url}?{urlencode({'query': expression})}")["data"]["result"])

    def fired_and_resolved(self, alert: str, engine: str, status: str, *, receiver: str) -> None:
        """Wait for the notice, at the right receiver, with its page's address."""
        notice = self.webhook.wait(alert, engine, status, NOTICE_SECONDS)
        assert notice["receiver"] == receiver
        assert notice["annotations"]["runbook_url"].endswith(alert)
        assert f"{engine}:0" in notice["annotations"]["description"].lower()


@pytest.fixture(name="live", scope="module")
def whole_chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with memory_directory() as directory, ExitStack() as stack:
        webhook = stack.enter_context(Webhook())
        document = alertmanager_document(SCALED, webhook_url=webhook.url)
        alertmanager = stack.enter_context(Alertmanager(tmp_path_factory.mktemp("alertmanager"), document))
        agent = stack.enter_context(AgentProcess(directory))
        prometheus = Prometheus(
            tmp_path_factory.mktemp("prometheus"),
            agent=agent.url,
            alertmanager=alertmanager.address,
            parameters=SCALED,
        )
        yield Live(directory, agent, stack.enter_context(prometheus), webhook)


def test_every_rule_evaluates_without_an_error(live: Live) -> None:
    def evaluated() -> list[dict[str, str]] | None:
        groups = ask(f"{live.prometheus.url}/api/v1/rules")["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        return None if any(rule["health"] == "unknown" for rule in rules) else rules

    rules = wait_for(evaluated, "every rule has been evaluated")
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == set(alert_names())
    assert [rule for rule in rules if rule["health"] != "ok"] == []


def test_a_leak_is_told_and_taken_back_when_the_engine_is_started_anew(live: Live) -> None:
    with live.engine("leaky", "--fault", "skipped_free") as engine:
        leak(engine)
        live.fired_and_resolved("KvledgerBlockLeak", "leaky", "firing", receiver="ticket")
        engine.stop()
    with live.engine("leaky"):
        live.fired_and_resolved("KvledgerBlockLeak", "leaky", "resolved", receiver="ticket")


def test_a_stopped_process_is_frozen_until_it_goes_on(live: Live) -> None:
    with (
        live.engine("stopped") as engine,
        Request(engine.url, prompt_tokens=10, max_tokens=900) as request,
    ):
        request.first_event()
        engine.core.send(signal.SIGSTOP)
        try:
            live.fired_and_resolved("KvledgerEngineFrozen", "stopped", "firing", receiver="page")
        finally:
            engine.core.send(signal.SIGCONT)
        live.fired_and_resolved("KvledgerEngineFrozen", "stopped", "resolved", receiver="page")


def test_a_killed_engine_is_down_until_its_next_start(live: Live) -> None:
    with live.engine("killed") as engine:
        engine.core.kill()
        live.fired_and_resolved("KvledgerEngineDown", "killed", "firing", receiver="page")
    with live.engine("killed"):
        live.fired_and_resolved("KvledgerEngineDown", "killed", "resolved", receiver="page")
