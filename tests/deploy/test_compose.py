"""The compose file keeps its rules, its commands are ours, and every planted defect is found. Starts no container."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator

import pytest

from kvledger_agent.client import check_url
from kvledger_agent.config import resolve
from kvledger_engine.command import CORE_END_SECONDS, SHUTDOWN_SECONDS
from kvledger_engine.options import core_options
from tests.deploy import rules
from tests.deploy.commands import PROJECT, parsed
from tests.deploy.compose import Document, Service, document, services
from tests.deploy.rules import sibling

RULES = (rules.hardening, rules.images, rules.ports, rules.health, rules.mounts, rules.form)
OURS = ("engine", "agent", "explorer", "runbook")
ASKED_OF_OTHERS = {"prometheus": "/-/ready", "alertmanager": "/-/ready", "grafana": "/api/health"}
EVERYONE = (*OURS, *ASKED_OF_OTHERS)
ANYWHERE = "0.0.0.0"
Change = Callable[[Document], object]


def listens_on(service: Service, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Address and port that a service listens on in its container, from its command or its settings."""
    if service.is_ours:
        given = parsed(service, monkeypatch)
        return given.host, given.port
    if address := service.option.get("web.listen-address"):
        host, _, port = address.partition(":")
        return host, int(port)
    return ANYWHERE, int(service.environment["GF_SERVER_HTTP_PORT"])


# -- the file as it is ------------------------------------------------------------------------------------------------


def test_the_services_are_those_of_the_panel() -> None:
    assert set(services()) == set(EVERYONE)
    assert {name for name, service in services().items() if service.is_ours} == set(OURS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_file_keeps_the_rule(rule: Callable[[Document], Iterator[str]]) -> None:
    assert list(rule(document())) == []


@pytest.mark.parametrize("name", EVERYONE)
def test_the_published_port_is_the_one_that_the_service_listens_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = services()[name]
    (port,) = service.ports
    assert listens_on(service, monkeypatch) == (ANYWHERE, port.target)


def test_the_others_are_asked_for_what_their_makers_document() -> None:
    assert {name: services()[name].probe.path for name in ASKED_OF_OTHERS} == ASKED_OF_OTHERS


def test_nobody_has_the_uid_of_another_but_the_two_that_share_their_makers() -> None:
    users = {name: service.user[0] for name, service in services().items()}
    assert users.pop("alertmanager") == users["prometheus"]
    assert len(set(users.values())) == len(users)


def test_the_engine_of_the_file_can_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    options = core_options(parsed(services()["engine"], monkeypatch))
    assert options.directory == "/ledgers"
    assert options.model.source == "embedded"
    assert not options.allow_disk
    assert options.fault is None


def test_the_agent_of_the_file_watches_where_the_engine_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, engine = services()["agent"], services()["engine"]
    config = resolve(vars(parsed(agent, monkeypatch)), agent.environment)
    assert str(config.directory) == parsed(engine, monkeypatch).directory
    mounted = {service.name: {str(mount.target) for mount in service.mounts} for service in (agent, engine)}
    assert all(str(config.directory) in targets for targets in mounted.values())


def test_the_explorer_of_the_file_asks_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    explorer = services()["explorer"]
    url = check_url(parsed(explorer, monkeypatch).agent)
    assert sibling(explorer, document(), url) is None


def test_the_engine_is_given_the_time_to_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = services()["engine"]
    grace = re.fullmatch(r"(\d+)s", engine.raw["stop_grace_period"])
    assert grace
    # After its drain the command waits for its core, for what is being answered, and for the core's exit.
    longest = parsed(engine, monkeypatch).drain_timeout + 2 * CORE_END_SECONDS + SHUTDOWN_SECONDS
    assert int(grace[1]) > longest


def test_the_tags_of_our_images_are_the_projects_version() -> None:
    wanted = {name: f"kvledger-{name}:{PROJECT['project']['version']}" for name in OURS}
    assert {name: services()[name].raw["image"] for name in OURS} == wanted


def test_an_argument_that_no_command_knows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = document()
    changed["services"]["engine"]["command"].append("--pool-blocks=3")
    with pytest.raises(SystemExit):
        parsed(services(changed)["engine"], monkeypatch)


# -- planted defects --------------------------------------------------------------------------------------------------


def of(name: str, **values: object) -> Change:
    """A change that sets keys of a service."""
    return lambda doc: doc["services"][name].update(values)


def mount(name: str, index: int, **values: object) -> Change:
    """A change that sets keys of a service's mount."""
    return lambda doc: doc["services"][name]["volumes"][index].update(values)


DEFECTS: list[tuple[Change, str]] = [
    (of("engine", user="0:0"), "engine: runs as root"),
    (of("grafana", cap_drop=["NET_RAW"]), "grafana: has capabilities"),
    (of("agent", cap_add=["SYS_PTRACE"]), "agent: has capabilities"),
    (of("explorer", security_opt=[]), "explorer: may gain privileges"),
    (of("prometheus", read_only=False), "prometheus: its root file system can be written"),
    (of("engine", tmpfs=["/tmp"]), "engine: /tmp is not a tmpfs of a stated size"),
    (of("agent", privileged=True), "agent: privileged is set"),
    (of("agent", pid="service:engine"), "agent: pid is set"),
    (of("prometheus", image="prom/prometheus:latest"), "prometheus: prom/prometheus:latest is no exact tag"),
    (of("grafana", image="grafana/grafana"), "grafana: grafana/grafana is no exact tag"),
    (of("grafana", image="grafana/grafana:13"), "grafana: grafana/grafana:13 is no exact tag"),
    (of("agent", ports=["0.0.0.0:9470:9470"]), "agent: 9470 is open to 0.0.0.0"),
    (of("agent", ports=["127.0.0.1:8000:9470"]), "agent: 8000 is published by engine, too"),
    (of("agent", ports=["127.0.0.1:9470:9471"]), "agent: 9471 is published, 9470 is asked for health"),
    (lambda doc: doc["services"]["explorer"]["healthcheck"].pop("retries"), "explorer: its health check lacks"),
    (of("explorer", depends_on={"agents": {"condition": "service_healthy"}}), "explorer: waits for agents, which is"),
    (of("explorer", depends_on={"agent": {"condition": "service_started"}}), "explorer: does not wait until agent is"),
    (mount("prometheus", 0, source="./alerts/prometheus.yml"), "prometheus: ./alerts/prometheus.yml does not exist"),
    (mount("prometheus", 0, source="./dist"), "prometheus: ./dist is ignored by git"),
    (mount("prometheus", 1, read_only=False), "rules.yml can be written"),
    (mount("prometheus", 1, bind={}), "rules.yml would become an empty directory"),
    (mount("prometheus", 1, target="/etc/prometheus/prometheus.yml"), "prometheus.yml is mounted twice"),
    (mount("agent", 0, source="ledger"), "agent: volume ledger is not declared"),
    (lambda doc: doc["volumes"].update(old={}), "volume old is not used"),
    (lambda doc: doc.update(version="3.8"), "version: is obsolete"),
    (lambda doc: doc.pop("name"), "the project has no name"),
    (of("engine", command=["engine", "--port=$PORT"]), "$PORT is used"),
    (of("agent", environment={"API_KEY": "abc"}), "agent: API_KEY is written down"),
]


@pytest.mark.parametrize(("change", "said"), DEFECTS, ids=[said for _, said in DEFECTS])
def test_a_planted_defect_is_found(change: Change, said: str) -> None:
    changed = copy.deepcopy(document())
    change(changed)
    found = [problem for rule in RULES for problem in rule(changed)]
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (of("engine", user="kvledger"), "is not UID:GID"),
        (of("engine", ports=["8000:8000"]), "is not HOST:PUBLISHED:TARGET"),
        (of("engine", environment={"A": True}), "engine"),
    ],
)
def test_a_form_that_the_rules_cannot_read_is_an_error(change: Change, what: str) -> None:
    changed = document()
    change(changed)
    with pytest.raises(AssertionError, match=what):
        [problem for rule in RULES for problem in rule(changed)]
