"""A real Prometheus that scrapes a real agent beside real engines in trouble, each engine named after its scenario."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from kvledger_agent.up.child import Child
from kvledger_alerts.table import Parameters, Scale
from tests.alerts.stack import Prometheus
from tests.dashboards.client import send

ROOT = Path(__file__).parents[2]
SOURCES = [str(ROOT / name) for name in ("engine", "agent", "dashboards", "alerts", ".")]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join([*SOURCES, os.environ.get("PYTHONPATH", "")])}
READY_SECONDS, STOP_SECONDS, SCENARIO_SECONDS, LOAD_SECONDS = 90.0, 15.0, 90.0, 180
SCRAPE_SECONDS = 1
FASTER = 12
PARAMETERS = Parameters(
    scale=Scale(factor=1 / FASTER, floor_seconds=3 * SCRAPE_SECONDS), interval_seconds=FASTER * SCRAPE_SECONDS
)
"""Of the generated configuration and rules: a scrape a second, windows and `for` a twelfth of what they are."""
JOB = PARAMETERS.job
SETTINGS = {
    "storm": "--blocks 96 --max-num-seqs 12 --max-waiting 8 --watermark 6 --max-model-len 1024 --step-time base=8ms",
    "leak": "--blocks 64 --fault skipped_free --step-time base=20ms",
    "lost": "--blocks 64 --fault free_list_loss --step-time base=20ms",
    "stalled": "--blocks 300 --max-num-seqs 1 --max-num-batched-tokens 8 --step-time base=120ms",
    "frozen": "--blocks 64 --step-time base=40ms",
    "dead": "--blocks 64 --step-time base=40ms",
}
"""What makes each engine get into its trouble; what is sent to it and done to it is in `Live`."""


STORM = """
kvledger_maximum_concurrency{engine="storm"}
and on (engine) sum by (engine) (rate(kvledger_tenant_rejections_total[4s])) > 0
and on (engine) sum by (engine) (max_over_time(kvledger_group_shared_blocks[2m])) > 0
"""
"""What must have been seen of the storm before its panels are looked at: that it is one is a matter of chance."""


class QueryFailed(AssertionError):
    """Prometheus refused a query."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of an answer: its labels, and its values over time."""

    labels: Mapping[str, str]
    values: tuple[float, ...]


@dataclass(slots=True)
class Live:
    """Everything, started on entry and ended on exit. `moments` says when each scenario could be seen.

    `scorecard` is the storm's as the agent gave it at the moment `still`.
    """

    directory: Path
    began: float = field(default_factory=time.time)
    moments: dict[str, float] = field(default_factory=dict)
    engines: dict[str, dict[str, Any]] = field(default_factory=dict)
    scorecard: dict[str, Any] = field(default_factory=dict)
    agent: str = ""
    prometheus: str = ""
    _children: list[Child] = field(default_factory=list)
    _servers: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Live:
        """Start all of it, then bring every scenario about. Whatever fails, nothing is left running."""
        try:
            self._start()
            self._provoke()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def instant(self, expr: str, at: float) -> list[Series]:
        """The answer to an instant query."""
        found = self._ask("query", query=expr, time=f"{at:.3f}")["result"]
        return [Series(each["metric"], (float(each["value"][1]),)) for each in found]

    def over_time(self, expr: str, until: float) -> list[Series]:
        """The answer to a range query from the beginning, second by second back from `until`."""
        start = until - math.ceil(until - self.began)
        found = self._ask("query_range", query=expr, start=f"{start:.3f}", end=f"{until:.3f}", step="1")["result"]
        return [Series(each["metric"], tuple(float(value) for _, value in each["values"])) for each in found]

    def points(self, expr: str, begin: float, until: float) -> list[tuple[Mapping[str, str], list[tuple[float, str]]]]:
        """Labels and (seconds, value) points of each series of a range query, second by second."""
        found = self._ask("query_range", query=expr, start=f"{begin:.3f}", end=f"{until:.3f}", step="1")["result"]
        return [(each["metric"], [(at, value) for at, value in each["values"]]) for each in found]

    def stall_again(self) -> None:
        """Bring the engine named so into its trouble once more; come back when Prometheus has seen it."""
        self._stall(first_token=41)
        self._await({"stalled again": 'kvledger_verdict{engine="stalled",verdict="stalled"} == 1'})

    def label_values(self, selector: str, label: str) -> list[str]:
        """What a variable would list."""
        return list(self._ask(f"label/{label}/values", **{"match[]": selector}))

    def _ask(self, path: str, **parameters: str) -> Any:
        url = f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refused:
            raise QueryFailed(f"{parameters}: {refused.read().decode()}") from refused

    def _start(self) -> None:
        (self.directory / "ledgers").mkdir()
        children = {name: self._child("engine", *self._engine_arguments(name), "--port", "0") for name in SETTINGS}
        agent = self._child("agent", *self._agent_arguments(), "--port", "0")
        self.agent = agent.first_line(READY_SECONDS)["url"]
        server = Prometheus(self.directory / "prometheus", agent=self.agent, parameters=PARAMETERS)
        self.prometheus = self._servers.enter_context(server).url
        self.engines = {name: child.first_line(READY_SECONDS) for name, child in children.items()}

    def _engine_arguments(self, name: str) -> list[str]:
        directory = str(self.directory / "ledgers")
        return [
            "--directory",
            directory,
            "--name",
            name,
            "--model",
            "cell",
            "--drain-timeout",
            "0",
            *SETTINGS[name].split(),
        ]

    def _agent_arguments(self) -> list[str]:
        return ["--directory", str(self.directory / "ledgers"), "--interval-seconds", "0.5", "--price-per-hour", "3.6"]

    def _child(self, command: str, *arguments: str) -> Child:
        child = Child(
            command, [command, "--json", *arguments], log=self.directory / f"{command}.log", environment=ENVIRONMENT
        )
        self._children.append(child)
        return child

    def _provoke(self) -> None:
        """Put every engine into its trouble at once, then wait until Prometheus has seen each."""
        self._await({"quiet": 'kvledger_pool_blocks{engine="storm",state="free"} > 0'})
        load = ["--url", self.engines["storm"]["url"], "--profile", "storm", "--rate", "24", "--drain", "1"]
        self._child("load", *load, "--for", str(LOAD_SECONDS), "--length-scale", "0.6")
        for name in ("leak", "frozen", "dead"):
            send(self.engines[name]["url"], prompt_tokens=96, tokens=400, events_read=3 if name == "leak" else None)
        send(self.engines["lost"]["url"], prompt_tokens=96, tokens=8)
        busy = {name: f'sum(kvledger_tenant_blocks{{engine="{name}"}}) > 0' for name in ("frozen", "dead")}
        self._await({f"{name} at work": expr for name, expr in busy.items()})
        os.kill(self.engines["frozen"]["core_pid"], signal.SIGSTOP)
        os.kill(self.engines["dead"]["core_pid"], signal.SIGKILL)
        self._stall()
        verdicts = {"leak": "leaking", "stalled": "stalled", "frozen": "frozen", "dead": "unknown"}
        scenes = {name: f'kvledger_verdict{{engine="{name}",verdict="{word}"}} == 1' for name, word in verdicts.items()}
        self._await(scenes | {"storm": STORM, "lost": 'abs(kvledger_invariant_violations{engine="lost"}) > 0'})
        alerts = {"KvledgerBlockLeak": "leak", "KvledgerEngineFrozen": "frozen"}
        firing = 'ALERTS{{alertname="{}",engine="{}",alertstate="firing"}}'
        self._await({alert: firing.format(alert, engine) for alert, engine in alerts.items()})
        again = self._child("engine", *self._engine_arguments("dead"), "--port", "0")
        self.engines["again"] = again.first_line(READY_SECONDS)
        self._await({"restart": 'increase(kvledger_engine_restarts_total{engine="dead"}[4s]) > 0'})
        self._hold_storm()

    def _stall(self, first_token: int = 1) -> None:
        """A prompt that is computed for a minute, then a request that waits for it: the other way round is no stall."""
        url = self.engines["stalled"]["url"]
        live = 'sum(kvledger_requests_live{engine="stalled"%s})'
        self._await({f"unoccupied before {first_token}": f"{live % ''} == 0"})
        send(url, prompt_tokens=4000, tokens=8, first_token=first_token)
        self._await({f"occupied with {first_token}": live % ',state="running"' + " > 0"})
        send(url, prompt_tokens=96, tokens=8, first_token=first_token)

    def _hold_storm(self) -> None:
        """Keep the storm's ledger as it is for so long that its page and its scorecard say the same."""
        core = self.engines["storm"]["core_pid"]
        os.kill(core, signal.SIGSTOP)
        try:
            self._await({"still": 'kvledger_engine_heartbeat_age_seconds{engine="storm"} > 2.5'})
            with urllib.request.urlopen(f"{self.agent}/v1/engines/storm/scorecard", timeout=10) as answer:
                self.scorecard = json.load(answer)
        finally:
            os.kill(core, signal.SIGCONT)

    def _await(self, scenes: Mapping[str, str]) -> None:
        """Wait until each query has had an answer, and note when it first had one."""
        deadline = time.monotonic() + SCENARIO_SECONDS
        while pending := [name for name in scenes if name not in self.moments]:
            for name in pending:
                now = time.time()
                if self._answers(scenes[name], now):
                    self.moments[name] = now
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {SCENARIO_SECONDS:.0f} s: {pending}\n{self._last_words()}")
            time.sleep(0.25)

    def _answers(self, expr: str, at: float) -> list[Series]:
        try:
            return self.instant(expr, at)
        except OSError:
            return []  # Prometheus is still starting

    def _last_words(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-800:] for path in self.directory.glob("**/*log"))

    def _stop(self) -> None:
        if "frozen" in self.engines:
            os.kill(self.engines["frozen"]["core_pid"], signal.SIGCONT)
        for child in reversed(self._children):
            child.ask(signal.SIGTERM)
        for child in self._children:
            child.stop(STOP_SECONDS)
        self._servers.close()
        shutil.rmtree(self.directory, ignore_errors=True)
