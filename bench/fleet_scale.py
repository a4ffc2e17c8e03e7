"""`python -m bench.fleet_scale`: many engines behind one real Prometheus, measured, and the table in docs/fleet.md.

Starts pages (`bench.fleetpages`) and a Prometheus with the files of deploy/fleet/cluster, on loopback, ends both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench import children
from bench.errors import BenchError
from bench.fleet_figures import PROCESSES, QUICK, WATCHES, Figures, Size, facts_of, rows_of
from bench.fleet_scale_page import Run, section, write_section
from bench.machine import this_machine
from bench.prometheus import Asked, PrometheusClient
from kvledger_agent.errors import AgentError
from kvledger_alerts.build import generated_files, target_files, write, yaml_text
from kvledger_alerts.fleet_rows import Question, questions
from kvledger_alerts.monitor.programs import PROMETHEUS
from kvledger_alerts.monitor.server import Server, loopback_port
from kvledger_alerts.prometheus import AGENT_TARGETS
from kvledger_alerts.table import Parameters

ROOT = Path(__file__).parents[1]
CLUSTER = ROOT / "deploy" / "fleet" / "cluster"
PAGE = ROOT / "docs" / "fleet.md"
STEP_SECONDS = 15
WATCH_WINDOW = "1m"
UP_SECONDS = 180.0
FEWEST_ROUNDS, ASK_SECONDS, CHECK_SECONDS = 3, 45.0, 60.0
"""No round of questions begins later than this, once there are enough."""


def measure(size: Size) -> Run:
    """Simulate a fleet of this size and measure its Prometheus. Raises `BenchError` when a target is not scraped."""
    machine, figures = this_machine(), Figures()
    directory = Path(tempfile.mkdtemp(prefix="kvledger-fleet-"))
    try:
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, directory)
            urls = _pages(stack, size, figures)
            server = stack.enter_context(_prometheus(directory, urls))
            prometheus = stack.enter_context(closing(PrometheusClient(server.url)))
            _say(f"{size.engines} engines, {figures.page_bytes:,} bytes a page; waiting for every page")
            _wait_until_scraped(prometheus, size)
            _say(f"scraping for {size.history_seconds:.0f} s")
            time.sleep(size.history_seconds)
            process = psutil.Process(server.pid)
            _watch(prometheus, process, size, figures)
            _ask(prometheus, size, figures)
            figures.memory_mb.append(process.memory_info().rss / 1e6)
            server.require_running()
            return Run(machine=machine, prometheus=_version(), size=facts_of(size, figures), rows=rows_of(figures))
    except AgentError as error:
        raise BenchError(str(error)) from error


def _pages(stack: ExitStack, size: Size, figures: Figures) -> list[str]:
    """Start the processes that serve the pages; every engine's address."""
    share = -(-size.engines // PROCESSES)
    urls = []
    for first in range(0, size.engines, share):
        count = min(share, size.engines - first)
        ready = stack.enter_context(
            children.module("bench.fleetpages", str(first), str(count), str(size.tenants), str(size.models))
        )
        figures.page_bytes = ready["page_bytes"]
        urls += [f"{ready['url']}/{number}" for number in range(first, first + count)]
    return urls


@contextmanager
def _prometheus(directory: Path, urls: Sequence[str]) -> Iterator[Server]:
    """Prometheus with the cluster's own files; only the list of agents is ours."""
    files = {name: text for name, text in generated_files().items() if name.endswith("rules.yml")}
    files["prometheus.yml"] = (CLUSTER / "prometheus.yml").read_text()
    write(directory, files | target_files(agents=(), alertmanagers=()) | {AGENT_TARGETS: yaml_text(_targets(urls))})
    port = loopback_port("--port", 0)
    command = [
        PROMETHEUS.require(),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    server = Server("prometheus", command, port=port, log=directory / "log")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def _targets(urls: Sequence[str]) -> list[dict[str, Any]]:
    """Each engine as a target under a name of its own: in a fleet each has an agent with an address of its own."""
    return [
        {
            "targets": [url.removeprefix("http://").partition("/")[0]],
            "labels": {"__metrics_path__": f"/{number}/metrics", "instance": f"agent-{number:03d}:9470"},
        }
        for number, url in enumerate(urls)
    ]


def _wait_until_scraped(prometheus: PrometheusClient, size: Size) -> None:
    deadline = time.monotonic() + UP_SECONDS
    while (up := prometheus.number('count(max_over_time(up{job="kvledger"}[5m]) == 1)')) != size.engines:
        if time.monotonic() > deadline:
            raise BenchError(f"{up or 0:.0f} of {size.engines} pages are scraped after {UP_SECONDS:.0f} s")
        time.sleep(1.0)


def _watch(prometheus: PrometheusClient, process: psutil.Process, size: Size, figures: Figures) -> None:
    """Series, samples, memory, scrapes and rules while nobody asks anything."""
    _say(f"watching for {WATCHES * size.idle_seconds:.0f} s")
    for _ in range(WATCHES):
        before, times, began = prometheus.metrics(), process.cpu_times(), time.monotonic()
        time.sleep(size.idle_seconds)
        after, used, seconds = prometheus.metrics(), process.cpu_times(), time.monotonic() - began
        appended = "prometheus_tsdb_head_samples_appended_total"
        figures.samples.append((after[appended] - before[appended]) / seconds)
        figures.cpu_percent.append((used.user + used.system - times.user - times.system) / seconds * 100)
        figures.series.append(after["prometheus_tsdb_head_series"])
        figures.recorded.append(prometheus.number('count({__name__=~"(model|tenant):kvledger_.+"})') or 0.0)
        figures.memory_mb.append(process.memory_info().rss / 1e6)
        missed = prometheus.number(f'1 - avg(avg_over_time(up{{job="kvledger"}}[{WATCH_WINDOW}]))')
        figures.failed_percent.append(100 * (missed or 0.0))
        figures.scrape_ms += [1e3 * value for value in prometheus.numbers('scrape_duration_seconds{job="kvledger"}')]
        for group, seconds_taken in prometheus.rule_groups().items():
            figures.groups_ms[group].append(1e3 * seconds_taken)


def _ask(prometheus: PrometheusClient, size: Size, figures: Figures) -> None:
    """Every question in both forms in turns, as a number of now and as a graph over what there is."""
    asked = questions(Parameters())
    for question in asked:
        figures.read[question.title] = _checked(prometheus, question)
    until = time.monotonic() + ASK_SECONDS
    for number in range(size.rounds):
        if number >= FEWEST_ROUNDS and time.monotonic() > until:
            return
        _say(f"asking, round {number + 1} of {size.rounds}")
        for question in asked:
            for graph in (False, True):
                forms = [question.raw, question.recorded]
                took = {
                    form: _seconds(prometheus, form, size, graph) for form in (forms if number % 2 else forms[::-1])
                }
                figures.asked.setdefault((question.title, graph), []).append(
                    (1e3 * took[question.raw], 1e3 * took[question.recorded])
                )


def _checked(prometheus: PrometheusClient, question: Question) -> tuple[float, float]:
    """Samples that both forms read; both must answer with as many series. Raises `BenchError`.

    Which tenants are at the top, or which causes are waited for, may have changed since the rules were evaluated: they
    are asked again until an evaluation has caught up.
    """
    until = time.monotonic() + CHECK_SECONDS
    while True:
        raw, recorded = prometheus.ask(question.raw), prometheus.ask(question.recorded)
        if raw.series and len(raw.series) == len(recorded.series):
            return raw.samples_read, recorded.samples_read
        if time.monotonic() > until:
            raise BenchError(f"{question.title}: {sorted(raw.series)} is not {sorted(recorded.series)}")
        time.sleep(1.0)


def _seconds(prometheus: PrometheusClient, expression: str, size: Size, graph: bool) -> float:
    asked: Asked
    if graph:
        asked = prometheus.ask_range(expression, seconds=size.graph_seconds, step_seconds=STEP_SECONDS)
    else:
        asked = prometheus.ask(expression)
    return asked.seconds


def _version() -> str:
    said = subprocess.run([PROMETHEUS.require(), "--version"], capture_output=True, text=True, timeout=30)
    return (said.stdout + said.stderr).split()[2]


def _say(line: str) -> None:
    print(f"fleet_scale: {line}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None, *, path: Path = PAGE) -> int:
    """The command. Returns 1 when the fleet cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 engines, few rounds: for trying things out")
    parser.add_argument("--engines", type=int, help="so many engines; writes nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the section")
    args = parser.parse_args(arguments)
    size = QUICK if args.quick else Size()
    if args.engines is not None:
        if args.engines < 1:
            parser.error(f"--engines {args.engines}: give 1 or more")
        size = Size(engines=args.engines, history_seconds=size.history_seconds, rounds=size.rounds)
    try:
        run = measure(size)
    except BenchError as error:
        print(f"fleet_scale: {error}", file=sys.stderr)
        return 1
    print(json.dumps(run.document(), indent=2, allow_nan=False) if args.json else section(run))
    if size == Size():
        write_section(path, run)
        _say(f"wrote {path}")
    else:
        _say(f"{path.name} is left as it is: only a full run writes it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
