"""Real Prometheus processes with the files of deploy/fleet, only faster and on loopback; ledgers to be seen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from kvledger_alerts.build import generated_files, target_files, write, yaml_text
from kvledger_alerts.table import Parameters, Scale
from tests.alerts.stack import Server, ask, wait_for
from tests.fleet.files import FLEET, ROOT, load
from tests.ports import free_port

SCALED = Parameters(scale=Scale(factor=1 / 30, floor_seconds=3))
PACE = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
PATIENCE_SECONDS = 60.0

Change = Callable[[dict[str, Any]], None]


class Prometheus(Server):
    """A Prometheus over a directory that has its `prometheus.yml`."""

    def __init__(self, directory: Path, *flags: str) -> None:
        port = free_port()
        command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", *flags]
        super().__init__([*command, f"--web.listen-address=127.0.0.1:{port}"], f"http://127.0.0.1:{port}", directory)

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of every series of an instant query."""
        found = ask(f"{self.url}/api/v1/query?{urlencode({'query': expression})}")["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def until(self, expression: str, what: str) -> list[tuple[dict[str, str], float]]:
        """The answer once there is one."""
        return list(wait_for(lambda: self.query(expression), what, PATIENCE_SECONDS))


def faster(document: dict[str, Any]) -> dict[str, Any]:
    """A configuration at a test's pace."""
    document["global"] = {key: PACE.get(key, value) for key, value in document["global"].items()}
    return document


def cluster(directory: Path, name: str, agents: list[str], *, receiver: str | None = None) -> Prometheus:
    """The Prometheus of a cluster, sending to a receiver if there is one."""
    document = faster(load("cluster/prometheus.yml"))
    document["global"]["external_labels"]["cluster"] = name
    if receiver is not None:
        document |= load("cluster/remote-write.yml")
        document["remote_write"][0]["url"] = f"{receiver}/api/v1/write"
        document["remote_write"][0]["queue_config"]["batch_send_deadline"] = "1s"
    rules = {name: text for name, text in generated_files(SCALED).items() if name.endswith("rules.yml")}
    lists = target_files(agents=agents, alertmanagers=[])
    write(directory, {"prometheus.yml": yaml_text(document)} | rules | lists)
    return Prometheus(directory)


def federation(directory: Path, clusters: Mapping[str, str]) -> Prometheus:
    """The global one that asks the clusters, by name and address."""
    targets = [{"targets": [address], "labels": {"cluster": name}} for name, address in clusters.items()]
    return _global(directory, "federation.yml", {"targets/clusters.yml": yaml.safe_dump(targets)})


def receiver(directory: Path) -> Prometheus:
    """The global one that is written to."""
    return _global(directory, "receiver.yml", {}, "--web.enable-remote-write-receiver")


def _global(directory: Path, name: str, files: Mapping[str, str], *flags: str) -> Prometheus:
    document = faster(load(f"global/{name}"))
    rules = (FLEET / "global" / "rules.yml").read_text()
    lists = {"targets/alertmanager.yml": "[]\n"}
    write(directory, {"prometheus.yml": yaml_text(document), "rules.yml": rules, **lists, **files})
    return Prometheus(directory, *flags)


@contextmanager
def ledger(directory: Path, engine: str, rank: int) -> Iterator[None]:
    """A live, idle ledger of one rank, written by a process of its own and closed at the end of the block."""
    command = [sys.executable, "-m", "tests.agent.children", "hold", str(directory), engine, str(rank)]
    path = ":".join(str(ROOT / source) for source in (".", "engine", "agent"))
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.stdin.close()
        process.wait(20)
        process.stdout.close()
