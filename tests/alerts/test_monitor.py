"""`kvledger monitor` as a person runs it: a real Prometheus, a real Alertmanager, and nothing left of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from kvledger_alerts.monitor.command import WEBHOOK_VARIABLE
from kvledger_alerts.rules import alert_names
from kvledger_alerts.runbook_pages import RUNBOOK as PAGES
from kvledger_alerts.table import Parameters
from tests.alerts.stack import ask, wait_for
from tests.alerts.test_versions import MOUNTED, mounted
from tests.children import memory_directory
from tests.reliability.processes import AgentProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.needs("distribution"),
    pytest.mark.needs("prometheus"),
    pytest.mark.needs("alertmanager"),
]

HOOK = "http://127.0.0.1:9/hook"
RUNBOOK = "http://127.0.0.1:9/runbook/"
END_SECONDS = 30


class Monitor:
    """One `kvledger monitor --json` on free ports."""

    def __init__(self, *arguments: str, path: str | None = None) -> None:
        command = [sys.executable, "-m", "kvledger_agent", "monitor", "--json", "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--alertmanager-port", "0", "--runbook-port", "0", *arguments],
            env=os.environ | ({} if path is None else {"PATH": path}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: dict[str, Any] = {}

    def ready(self) -> Monitor:
        """Wait for its line; what it said is in `said`."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()[1]
        self.said = json.loads(line)
        self.children = psutil.Process(self.process.pid).children(recursive=True)
        self.commands = {child.name(): child.cmdline() for child in self.children}
        return self

    def api(self, path: str) -> Any:
        """The data of an answer of Prometheus."""
        return ask(f"{self.said['url']}/api/v1/{path}")["data"]

    def end(self) -> tuple[int, str]:
        """The exit code, and what it said on stderr."""
        _, err = self.process.communicate(timeout=END_SECONDS)
        return self.process.returncode, err

    def child(self, name: str) -> psutil.Process:
        """The child that runs this program."""
        (found,) = [child for child in self.children if child.name() == name]
        return found


@contextmanager
def monitor(*arguments: str, path: str | None = None) -> Iterator[Monitor]:
    started = Monitor(*arguments, path=path)
    try:
        yield started
    finally:
        if started.process.returncode is None:
            started.process.terminate()
            started.end()


def all_gone(children: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(children, timeout=END_SECONDS)[1]


@pytest.fixture(name="watching", scope="module")
def monitor_of_an_agent() -> Iterator[Monitor]:
    with memory_directory() as directory, ExitStack() as stack:
        agent = stack.enter_context(AgentProcess(directory))
        with patch.dict(os.environ, {WEBHOOK_VARIABLE: HOOK}):
            started = stack.enter_context(monitor("--agent", agent.url, "--runbook-base", RUNBOOK))
        yield started.ready()


@pytest.mark.needs("tmpfs")
def test_the_agent_is_scraped_under_the_job_that_the_rules_ask_for(watching: Monitor) -> None:
    def scraped() -> list[dict[str, Any]]:
        return [target for target in watching.api("targets")["activeTargets"] if target["health"] == "up"]

    (target,) = wait_for(scraped, "the agent is scraped")
    assert target["scrapeUrl"] == f"{watching.said['agents'][0]}/metrics"
    assert target["labels"]["job"] == "kvledger"


@pytest.mark.needs("tmpfs")
def test_every_alert_of_the_table_is_loaded(watching: Monitor) -> None:
    rules = [rule for group in watching.api("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == set(alert_names())
    assert ask(watching.said["alerts"])


@pytest.mark.needs("tmpfs")
def test_its_links_lead_where_it_listens_and_where_the_runbook_is_served(watching: Monitor) -> None:
    rules = [rule for group in watching.api("rules")["groups"] for rule in group["rules"]]
    links = {rule["annotations"]["runbook_url"] for rule in rules if rule["type"] == "alerting"}
    assert links == {RUNBOOK + name for name in alert_names()}
    flags = watching.api("status/flags")
    assert flags["web.external-url"] == f"{watching.said['url']}/"


@pytest.mark.needs("tmpfs")
def test_alertmanager_is_the_one_that_prometheus_tells(watching: Monitor) -> None:
    (told,) = wait_for(lambda: watching.api("alertmanagers")["activeAlertmanagers"], "Alertmanager is discovered")
    assert told["url"].startswith(watching.said["alertmanager"])
    status = ask(f"{watching.said['alertmanager']}/api/v2/status")
    assert "KvledgerEngineDown" in status["config"]["original"]
    assert status["cluster"]["status"] == "disabled"


@pytest.mark.needs("tmpfs")
def test_a_webhook_from_the_environment_is_in_a_file_for_its_owner_and_in_no_argument(watching: Monitor) -> None:
    written = Path(watching.said["directory"]) / "config" / "alertmanager.yml"
    assert f"url: {HOOK}" in written.read_text()
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    for process in (psutil.Process(watching.process.pid), *watching.children):
        assert not [argument for argument in process.cmdline() if HOOK in argument]


def test_every_alert_links_to_its_page_and_every_page_on_to_others(tmp_path: Path) -> None:
    with monitor("--data", str(tmp_path)) as started:
        rules = [rule for group in started.ready().api("rules")["groups"] for rule in group["rules"]]
        base = started.said["runbook"]
        links = {rule["name"]: rule["annotations"]["runbook_url"] for rule in rules if rule["type"] == "alerting"}
        assert links == {name: base + name for name in alert_names()}
        for name, url in links.items():
            page = answer(url)
            assert f"<h1>{name}</h1>" in page
            for further in re.findall(r'<a href="([^"]+)">', page):
                assert answer(base + further), (name, further)
        assert "<h1>Runbook</h1>" in answer(base)
        for nowhere in ("Nothing", "../rows.py", f"{PAGES}/README.md"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                answer(base + nowhere)


def test_the_runbook_is_served_by_itself_too_until_a_signal() -> None:
    command = [sys.executable, "-m", "kvledger_agent", "runbook", "--json", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            assert "<h1>KvledgerBlockLeak</h1>" in answer(f"{said['url']}KvledgerBlockLeak")
            process.terminate()
            assert process.wait(END_SECONDS) == 0
        finally:
            process.kill()


def answer(url: str) -> str:
    with urllib.request.urlopen(url, timeout=END_SECONDS) as response:
        assert response.headers["Content-Type"] == "text/html; charset=utf-8"
        return str(response.read().decode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_and_leaves_no_file(number: signal.Signals) -> None:
    with monitor() as started:
        directory = Path(started.ready().said["directory"])
        assert len(started.children) == 2
        assert directory.is_dir()
        started.process.send_signal(number)
        assert started.end() == (0, "")
    assert all_gone(started.children)
    assert not directory.exists()


def test_what_was_kept_is_there_at_the_next_start(tmp_path: Path) -> None:
    for _ in range(2):
        with monitor("--data", str(tmp_path / "kept")) as started:
            assert started.ready().said["directory"] == str(tmp_path / "kept")
    assert (tmp_path / "kept" / "prometheus" / "wal").is_dir()


def test_a_webhook_is_for_its_owner_only_where_an_earlier_file_could_be_read_by_all(tmp_path: Path) -> None:
    written = tmp_path / "config" / "alertmanager.yml"
    written.parent.mkdir()
    written.touch()
    written.chmod(0o644)
    with monitor("--data", str(tmp_path), "--webhook", HOOK) as started:
        started.ready()
        assert f"url: {HOOK}" in written.read_text()
        assert stat.S_IMODE(written.stat().st_mode) == 0o600


def test_it_runs_the_very_files_that_compose_mounts(tmp_path: Path) -> None:
    with monitor("--data", str(tmp_path), "--runbook-base", Parameters().runbook_base) as started:
        started.ready()
        loaded = started.api("status/config")["yaml"]
    run = tmp_path / "config"
    assert {name: (run / name).read_bytes() for name in MOUNTED} == {n: mounted(n).read_bytes() for n in MOUNTED}
    assert "rules.yml" in loaded
    assert f"--config.file={run / 'prometheus.yml'}" in started.commands["prometheus"]
    assert f"--config.file={run / 'alertmanager.yml'}" in started.commands["prometheus-alertmanager"]


def test_killed_outright_it_takes_both_with_it(tmp_path: Path) -> None:
    with monitor("--data", str(tmp_path)) as started:
        started.ready().process.kill()
        started.end()
    assert all_gone(started.children)


@pytest.mark.parametrize(
    ("name", "program"), [("prometheus", "prometheus"), ("alertmanager", "prometheus-alertmanager")]
)
def test_when_one_dies_it_ends_the_other_and_says_the_last_words(name: str, program: str) -> None:
    with monitor() as started:
        started.ready().child(program).kill()
        code, err = started.end()
    assert code == 1
    assert f"{name} ended with exit code -9" in err
    assert "level=info" in err or "level=INFO" in err
    assert all_gone(started.children)


@pytest.fixture(name="only")
def path_with_only(tmp_path: Path) -> Callable[..., str]:
    """A PATH on which there are these programs alone."""

    def made(*programs: str) -> str:
        for program in programs:
            found = shutil.which(program)
            assert found is not None
            (tmp_path / program).symlink_to(found)
        return str(tmp_path)

    return made


def test_without_prometheus_it_says_what_to_install(only: Callable[..., str]) -> None:
    with monitor(path=only("prometheus-alertmanager")) as started:
        assert started.end() == (1, "kvledger: Prometheus is not installed: apt-get install prometheus\n")


def test_without_pyyaml_it_names_the_extra_that_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yaml.py").write_text("raise ModuleNotFoundError(\"No module named 'yaml'\", name='yaml')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with monitor() as started:
        code, err = started.end()
    assert code == 1
    assert err == "kvledger: `monitor` needs yaml, which is not installed: pip install 'kvledger[alerts]'\n"


def test_without_alertmanager_it_serves_the_alerts_and_says_so(only: Callable[..., str]) -> None:
    with monitor(path=only("prometheus")) as started:
        said = started.ready().said
        assert said["alertmanager"] is None
        assert said["missing"] == ["Alertmanager is not installed: apt-get install prometheus-alertmanager"]
        assert started.api("alertmanagers")["activeAlertmanagers"] == []
        assert [child.name() for child in started.children] == ["prometheus"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        pytest.param(["--port", "70000"], 2, "--port 70000: give a number from 0 to 65535", id="no port"),
        pytest.param(["--agent", "127.0.0.1:9470"], 2, "agent address '127.0.0.1:9470'", id="no address of an agent"),
        pytest.param(["--webhook", "hook"], 2, "--webhook is no URL", id="no address of a webhook"),
        pytest.param(["--data", "/proc/nowhere"], 2, "--data /proc/nowhere", id="a directory that cannot be"),
    ],
)
def test_bad_arguments_are_refused_with_the_value(arguments: list[str], code: int, said: str) -> None:
    with monitor(*arguments) as started:
        found, err = started.end()
    assert (found, said in err) == (code, True), err
    assert "Traceback" not in err


def test_a_webhook_without_alertmanager_is_refused(only: Callable[..., str]) -> None:
    with monitor("--webhook", HOOK, path=only("prometheus")) as started:
        code, err = started.end()
    assert code == 1
    assert "apt-get install prometheus-alertmanager" in err


def test_a_port_that_is_taken_is_refused_with_its_number(watching: Monitor) -> None:
    taken = watching.said["url"].rpartition(":")[2]
    with monitor("--port", taken) as started:
        code, err = started.end()
    assert code == 1
    assert f"127.0.0.1:{taken}" in err
    assert "choose another --port" in err
