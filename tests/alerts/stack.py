"""A real Prometheus, a real Alertmanager and a webhook, on free loopback ports, ended with their block."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvledger_alerts.build import generated_files, target_files, write, yaml_text
from kvledger_alerts.table import Parameters
from tests.ports import free_port

READY_SECONDS = 20.0


def ask(url: str, body: object = None) -> Any:
    """GET, or POST as JSON; the answer as JSON, or as text where it is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as answer:
        text = answer.read().decode()
    try:
        return json.loads(text)
    except ValueError:
        return text


def wait_for(holds: Callable[[], Any], what: str, seconds: float = READY_SECONDS) -> Any:
    """What `holds` answers once it is true. Servers tell nobody when they are ready."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if answer := holds():
                return answer
        except urllib.error.HTTPError as refused:
            refused.close()
            answer = None
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            answer = None
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.1)


class Server:
    """One process that listens, killed at the end of its block if it does not stop."""

    def __init__(self, command: list[str], url: str, directory: Path) -> None:
        self.url, self._command, self._directory = url, command, directory

    def __enter__(self) -> Self:
        self._log = (self._directory / "log").open("w")
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=self._log, cwd=self._directory)
        wait_for(lambda: self._ready(), f"{self._command[0]} is ready: {self._directory / 'log'}")
        return self

    def _ready(self) -> bool:
        assert self._process.poll() is None, (self._directory / "log").read_text()
        return bool(ask(f"{self.url}/-/ready"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


class Alertmanager(Server):
    """Debian's Alertmanager with this configuration, alone."""

    def __init__(self, directory: Path, document: Mapping[str, Any]) -> None:
        write(directory, {"alertmanager.yml": yaml_text(document)})
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        command = [
            "prometheus-alertmanager",
            "--config.file=alertmanager.yml",
            "--storage.path=data",
            f"--web.listen-address={self.address}",
            "--cluster.listen-address=",
        ]
        super().__init__(command, f"http://{self.address}", directory)

    def inhibited(self, alerts: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
        """Hand it these alerts, at least one of which another explains; those that it keeps to itself."""
        wanted = [dict(labels) for labels in alerts]
        ask(f"{self.url}/api/v2/alerts", [{"labels": labels} for labels in wanted])

        def settled() -> list[dict[str, str]] | None:
            known = [a for a in ask(f"{self.url}/api/v2/alerts") if a["labels"] in wanted]
            kept = [a["labels"] for a in known if a["status"]["inhibitedBy"]]
            return kept if len(known) == len(wanted) and kept == self._kept_before(kept) else None

        self._kept: list[dict[str, str]] = []
        return list(wait_for(settled, "alerts are processed"))

    def _kept_before(self, kept: list[dict[str, str]]) -> list[dict[str, str]] | None:
        """The last answer, None before there was one: the inhibitor learns of alerts one by one."""
        before, self._kept = self._kept, kept
        return before or None


class Prometheus(Server):
    """Debian's Prometheus with the generated configuration; only whom it scrapes and tells is of the test.

    Args:
        directory: empty; configuration, samples and `log` go there.
        agent: the agent's address, `http://HOST:PORT`.
        alertmanager: `HOST:PORT` of the Alertmanager to tell; None where nobody is told.
        parameters: job and scale, as for the generated files.
        rules: a rule file, as a document, in place of the generated one.
    """

    def __init__(
        self,
        directory: Path,
        *,
        agent: str,
        alertmanager: str | None = None,
        parameters: Parameters | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        files = generated_files(parameters) | ({} if rules is None else {"rules.yml": yaml_text(rules)})
        alertmanagers = [] if alertmanager is None else [alertmanager]
        write(directory, files | target_files(agents=[agent], alertmanagers=alertmanagers))
        port = free_port()
        command = [
            "prometheus",
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        super().__init__(command, f"http://127.0.0.1:{port}", directory)


class Webhook:
    """Where notifications arrive. `notices` holds every alert of every notification, in order."""

    def __init__(self) -> None:
        self.notices: queue.Queue[dict[str, Any]] = queue.Queue()
        notices = self.notices

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    notices.put({**alert, "receiver": body["receiver"]})
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Notifications are asserted on, not printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def wait(self, name: str, engine: str, status: str, seconds: float) -> dict[str, Any]:
        """The next notice of this alert and engine with this status; others are passed over."""
        deadline = time.monotonic() + seconds
        passed = []
        while (left := deadline - time.monotonic()) > 0:
            try:
                notice = self.notices.get(timeout=left)
            except queue.Empty:
                break
            if (notice["labels"]["alertname"], notice["labels"].get("engine"), notice["status"]) == (
                name, engine, status,
            ):  # fmt: skip
                return notice
            passed.append((notice["labels"]["alertname"], notice["labels"].get("engine"), notice["status"]))
        raise AssertionError(f"no {status} {name} of {engine} within {seconds:.0f} s; there were {passed}")

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
