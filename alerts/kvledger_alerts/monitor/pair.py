"""Prometheus and Alertmanager together, from the generated files, in a directory of their own. Order is its trade."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from kvledger_alerts.build import generated_files, target_files, write
from kvledger_alerts.monitor.server import HOST, Server, wait_for_an_end
from kvledger_alerts.table import Parameters

CONFIGURATION = "config"
ALERT_PAGES = ("/alerts", "/classic/alerts")
"""Prometheus' own, and that of Debian's build, which has the old pages alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start: the programs' paths (None: no Alertmanager), their ports, the agents, and who is told.

    `runbook_base` is where the runbook's pages are served; alerts link to it plus their name.
    """

    prometheus: str
    alertmanager: str | None
    prometheus_port: int
    alertmanager_port: int
    agents: Sequence[str]
    webhook_url: str | None = None
    runbook_base: str = Parameters().runbook_base

    @property
    def alertmanagers(self) -> list[str]:
        """`HOST:PORT` of the Alertmanager, if there is one."""
        return [] if self.alertmanager is None else [f"{HOST}:{self.alertmanager_port}"]

    def write(self, directory: Path) -> None:
        """Write every configuration file."""
        files = generated_files(Parameters(runbook_base=self.runbook_base), webhook_url=self.webhook_url)
        directory.mkdir(parents=True, exist_ok=True)
        # The webhook's address may be a secret, and a file kept from an earlier run may be readable by others.
        secret = directory / "alertmanager.yml"
        secret.touch(mode=0o600)
        secret.chmod(0o600)
        write(directory, files | target_files(agents=self.agents, alertmanagers=self.alertmanagers))

    def prometheus_command(self, directory: Path) -> list[str]:
        """Flags that 2.42 and 3 both know."""
        return [
            self.prometheus,
            f"--config.file={directory / CONFIGURATION / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address={HOST}:{self.prometheus_port}",
            # Links in notifications lead to where it listens, not to the host's name.
            f"--web.external-url=http://{HOST}:{self.prometheus_port}/",
        ]

    def alertmanager_command(self, directory: Path, program: str) -> list[str]:
        """An Alertmanager alone: it looks for no others."""
        return [
            program,
            f"--config.file={directory / CONFIGURATION / 'alertmanager.yml'}",
            f"--storage.path={directory / 'alertmanager'}",
            f"--web.listen-address={HOST}:{self.alertmanager_port}",
            f"--web.external-url=http://{HOST}:{self.alertmanager_port}/",
            "--cluster.listen-address=",
        ]


class Pair:
    """Both servers, started on entry and ended on exit, whatever happens in between."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan, self._directory = plan, directory
        self._servers: list[Server] = []
        self.prometheus_url = f"http://{HOST}:{plan.prometheus_port}"
        self.alertmanager_url = None if plan.alertmanager is None else f"http://{HOST}:{plan.alertmanager_port}"

    def __enter__(self) -> Pair:
        plan, directory = self._plan, self._directory
        plan.write(directory / CONFIGURATION)
        with ExitStack() as undo:
            undo.callback(self._stop)
            if plan.alertmanager is not None:
                command = plan.alertmanager_command(directory, plan.alertmanager)
                self._start("alertmanager", command, plan.alertmanager_port)
            self._start("prometheus", plan.prometheus_command(directory), plan.prometheus_port)
            for server in self._servers:
                server.wait_ready()
            undo.pop_all()
        return self

    @property
    def alerts_url(self) -> str:
        """The page of the alerts."""
        prometheus = self._servers[-1]
        return self.prometheus_url + next(filter(prometheus.serves, ALERT_PAGES), ALERT_PAGES[0])

    def _start(self, name: str, command: list[str], port: int) -> None:
        self._servers.append(Server(name, command, port=port, log=self._directory / f"{name}.log"))

    def run(self) -> None:
        """Until one of them ends by itself; raises `ServerFailed` then."""
        wait_for_an_end(self._servers).require_running()

    def _stop(self) -> None:
        for server in self._servers:
            server.ask_to_end()
        for server in self._servers:
            server.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
