"""What Prometheus, Alertmanager and Grafana are told: each file they look for is mounted, and names what exists."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

from tests.deploy.compose import ROOT, Document, Service, document, services
from tests.deploy.rules import sibling

HOME = "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
STORED = {"prometheus": "storage.tsdb.path", "alertmanager": "storage.path"}
DATASOURCE_KEYS = {"name", "uid", "type", "access", "url", "isDefault", "editable", "jsonData"}
PROVIDER_KEYS = {
    "name", "orgId", "type", "folder", "folderUid", "allowUiUpdates", "disableDeletion", "updateIntervalSeconds",
    "options",
}  # fmt: skip


def load(path: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(path.read_text())


def looked_for(name: str, service: Service) -> Iterator[PurePosixPath]:
    """Every file in the container that a service is told to read, by its command, settings or configuration."""
    if configuration := service.option.get("config.file"):
        yield PurePosixPath(configuration)
    if HOME in service.environment:
        yield PurePosixPath(service.environment[HOME])
        yield from (PurePosixPath(provider["options"]["path"]) for provider in providers())
    if name == "prometheus" and (path := service.host_path(configuration or "")) is not None:
        beside = PurePosixPath(configuration or "").parent
        yield from (beside / file for file in named_by(load(path)))


def named_by(prometheus: dict[str, Any]) -> list[str]:
    """Files that a Prometheus configuration names."""
    listed = [*prometheus["scrape_configs"], *prometheus["alerting"]["alertmanagers"]]
    targets = [file for entry in listed for config in entry["file_sd_configs"] for file in config["files"]]
    return [*prometheus["rule_files"], *targets]


def not_mounted(changed: Document) -> list[str]:
    """What is looked for and is not there."""
    found = []
    for name, service in services(changed).items():
        for path in looked_for(name, service):
            host = service.host_path(str(path))
            if host is None or not host.exists():
                found.append(f"{name}: {path}")
    return found


def test_every_file_that_a_service_is_told_to_read_is_mounted() -> None:
    assert not_mounted(document()) == []
    read = {str(path) for name, service in services().items() for path in looked_for(name, service)}
    assert read == {
        "/etc/prometheus/prometheus.yml",
        "/etc/prometheus/rules.yml",
        "/etc/prometheus/fleet_rules.yml",
        "/etc/prometheus/targets/agents.yml",
        "/etc/prometheus/targets/alertmanager.yml",
        "/etc/alertmanager/alertmanager.yml",
        "/etc/kvledger/boards",
        "/etc/kvledger/boards/kvledger-oncall.json",
    }


@pytest.mark.parametrize(
    ("name", "index", "missed"),
    [
        ("prometheus", 0, "prometheus: /etc/prometheus/prometheus.yml"),
        ("prometheus", 1, "prometheus: /etc/prometheus/rules.yml"),
        ("prometheus", 2, "prometheus: /etc/prometheus/fleet_rules.yml"),
        ("prometheus", 3, "prometheus: /etc/prometheus/targets/agents.yml"),
        ("alertmanager", 0, "alertmanager: /etc/alertmanager/alertmanager.yml"),
        ("grafana", 2, "grafana: /etc/kvledger/boards"),
    ],
)
def test_a_mount_that_is_missing_is_noticed(name: str, index: int, missed: str) -> None:
    changed = document()
    del changed["services"][name]["volumes"][index]
    assert missed in not_mounted(changed)


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_is_on_a_volume(name: str) -> None:
    service = services()[name]
    (volume,) = (mount for mount in service.mounts if mount.kind == "volume")
    assert str(volume.target) == service.option[STORED[name]]
    assert not volume.read_only


@pytest.mark.parametrize("name", ["prometheus", "alertmanager", "grafana"])
def test_links_lead_to_where_a_browser_finds_it(name: str) -> None:
    service = services()[name]
    url = service.option.get("web.external-url") or service.environment["GF_SERVER_ROOT_URL"]
    (port,) = service.ports
    assert url.rstrip("/") == f"http://{port.host}:{port.published}"


# -- Prometheus and Alertmanager --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "wanted"), [("agents", "agent"), ("alertmanager", "alertmanager")])
def test_the_target_lists_name_services_and_the_ports_they_listen_on(file: str, wanted: str) -> None:
    groups = load(ROOT / "deploy" / "prometheus" / "targets" / f"{file}.yml")
    targets = [target for group in groups for target in group["targets"]]
    assert [target.partition(":")[0] for target in targets] == [wanted]
    assert [sibling(services()["prometheus"], document(), target) for target in targets] == [None]


def test_a_target_that_is_no_service_or_another_port_is_noticed() -> None:
    prometheus = services()["prometheus"]
    assert sibling(prometheus, document(), "agents:9470") == "prometheus: agents:9470 names no service"
    assert sibling(prometheus, document(), "agent:9471") == "prometheus: agent does not listen on 9471"


@pytest.fixture
def in_container(tmp_path: Path) -> Path:
    """The files below /etc/prometheus and /etc/alertmanager as the containers see them, side by side."""
    for name in ("prometheus", "alertmanager"):
        for mount in (mount for mount in services()[name].mounts if mount.kind == "bind"):
            target = tmp_path / mount.target.relative_to("/etc")
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if mount.host_path.is_dir() else shutil.copyfile)(mount.host_path, target)
    return tmp_path


@pytest.mark.needs("promtool")
def test_prometheus_accepts_its_configuration_as_it_is_mounted(in_container: Path) -> None:
    configuration = in_container / "prometheus" / "prometheus.yml"
    done = subprocess.run(["promtool", "check", "config", str(configuration)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout + done.stderr, "a target list that is missing is a warning only"
    assert "2 rule files" in done.stdout


@pytest.mark.needs("alertmanager")
def test_alertmanager_accepts_its_configuration_as_it_is_mounted(in_container: Path) -> None:
    configuration = in_container / "alertmanager" / "alertmanager.yml"
    done = subprocess.run(["amtool", "check-config", str(configuration)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def unknown_flags(program: str, service: Service) -> list[str]:
    """Flags of a service that the program does not list in its help."""
    done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=30)
    return [flag for flag in service.option if f" --{flag}=" not in done.stdout + done.stderr]


@pytest.mark.parametrize(
    ("name", "program"),
    [
        pytest.param("prometheus", "prometheus", marks=pytest.mark.needs("prometheus")),
        pytest.param("alertmanager", "prometheus-alertmanager", marks=pytest.mark.needs("alertmanager")),
    ],
)
def test_every_flag_is_one_that_the_program_has(name: str, program: str) -> None:
    assert unknown_flags(program, services()[name]) == []
    assert unknown_flags(program, Service(name, {"command": ["--config=x"]})) == ["config"]


# -- Grafana ----------------------------------------------------------------------------------------------------------


def provisioned(kind: str) -> dict[str, Any]:
    """The one provisioning file of a kind, from where Grafana looks for it."""
    folder = services()["grafana"].host_path(f"/etc/grafana/provisioning/{kind}")
    assert folder is not None
    (path,) = folder.iterdir()
    loaded: dict[str, Any] = load(path)
    assert loaded["apiVersion"] == 1
    return loaded


def providers() -> list[dict[str, Any]]:
    """What fills Grafana's folders."""
    found: list[dict[str, Any]] = provisioned("dashboards")["providers"]
    return found


def datasource() -> dict[str, Any]:
    """The one data source."""
    (found,) = provisioned("datasources")["datasources"]
    assert isinstance(found, dict)
    return found


def boards() -> list[dict[str, Any]]:
    """Every board that is provisioned."""
    (provider,) = providers()
    folder = services()["grafana"].host_path(provider["options"]["path"])
    assert folder is not None
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def test_the_provisioning_files_have_keys_that_grafana_knows() -> None:
    assert provisioned("datasources").keys() <= {"apiVersion", "prune", "deleteDatasources", "datasources"}
    assert datasource().keys() <= DATASOURCE_KEYS
    (provider,) = providers()
    assert provider.keys() <= PROVIDER_KEYS
    assert (provider["type"], provider["folder"]) == ("file", "kvledger")


def test_the_data_source_is_the_prometheus_of_the_file_at_its_own_pace() -> None:
    source, grafana, prometheus = datasource(), services()["grafana"], services()["prometheus"]
    assert sibling(grafana, document(), source["url"]) is None
    assert source["url"].startswith("http://prometheus:")
    path = prometheus.host_path(prometheus.option["config.file"])
    assert path is not None
    assert source["jsonData"]["timeInterval"] == load(path)["global"]["scrape_interval"]


def test_every_board_finds_the_data_source() -> None:
    source = datasource()
    assert source["isDefault"] is True
    assert boards()
    for board in boards():
        chosen = [v for v in board["templating"]["list"] if v["type"] == "datasource"]
        assert [(v["name"], v["query"]) for v in chosen] == [("datasource", source["type"])]
        # A variable without a value of its own takes the default one; one with a value has to have ours.
        assert {v["current"]["value"] for v in chosen if v.get("current")} <= {source["uid"]}


def test_the_boards_are_classic_each_has_its_own_uid_and_the_first_page_is_one_of_them() -> None:
    assert all({"panels", "schemaVersion", "uid"} <= board.keys() and "spec" not in board for board in boards())
    uids = [board["uid"] for board in boards()]
    assert len(set(uids)) == len(uids)
    assert Path(services()["grafana"].environment[HOME]).stem in uids


def test_a_visitor_may_look_and_the_password_is_the_users() -> None:
    settings = services()["grafana"].environment
    assert settings["GF_AUTH_ANONYMOUS_ENABLED"] == "true"
    assert settings["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert settings["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_ADMIN_PASSWORD:?")
