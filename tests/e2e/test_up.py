"""`kvledger up` as a person runs it: real processes, real arrivals, and a summary that has to add up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.needs("distribution"), pytest.mark.needs("tmpfs")]

ROOT = Path(__file__).parents[2]
SECONDS = 30
LONGEST_OVERTIME_SECONDS = 20
STOP_SECONDS = 60
ALONE = ("--no-explorer", "--no-monitor")


@contextmanager
def up(*arguments: str, parts: Sequence[str] = ALONE, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """`kvledger up` as a child; asked to stop, then killed, if a failing test leaves it running.

    Engine, agent and load alone, unless `parts` leaves out less; `variables` are added to its environment.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "kvledger_agent", "up", *arguments, *parts],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()


def announced(process: subprocess.Popen[str]) -> Path:
    """Wait until everything is started; the directory of its ledgers, from the command it tells people to try."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("try"):
            return Path(line.split()[-1])
    raise AssertionError(f"it ended with {process.wait()} before it said what to try")


def complaint(process: subprocess.Popen[str], err: str) -> str:
    return f"exit code {process.returncode}: {err[-2000:]}"


@pytest.fixture(scope="module")
def run() -> tuple[dict[str, Any], float, str]:
    """One run of `up --for`: its summary, how long the whole took, and where its files were."""
    started = time.monotonic()
    with up("--for", str(SECONDS), "--json") as process:
        ledgers = announced(process)
        out, err = process.communicate(timeout=SECONDS + 60)
    assert process.returncode == 0, complaint(process, err + out)
    return json.loads(out), time.monotonic() - started, str(ledgers.parent)


def test_it_ends_by_itself_soon_after_the_time_it_was_given(run: tuple[dict[str, Any], float, str]) -> None:
    summary, seconds, _ = run
    assert SECONDS <= seconds <= SECONDS + LONGEST_OVERTIME_SECONDS
    assert summary["interrupted"] is False
    assert "interrupted" not in summary["load"]


def test_its_summary_shows_sharing_refusals_cancellations_and_waits_by_cause(
    run: tuple[dict[str, Any], float, str],
) -> None:
    summary, _, _ = run
    assert summary["shared_blocks"] > 0
    assert summary["logical_blocks"] > summary["active_blocks"] > 0
    assert sum(summary["cancellations"].values()) > 0
    by_clients = summary["load"]["cancellations"] + summary["load"]["timeouts"]
    assert sum(summary["cancellations"].values()) <= by_clients, "what the stop itself cut, nobody cancelled"
    assert summary["waits"]


@pytest.mark.needs("traces")
def test_the_azure_trace_alone_overruns_context_limit_and_pool(run: tuple[dict[str, Any], float, str]) -> None:
    summary, _, _ = run
    assert summary["trace"] == "azure_conv.csv"
    assert summary["rejections"]["context_too_long"] > 0
    assert summary["waits"]["pool"]["requests"] > 0


def test_nothing_leaks_and_nothing_is_held_after_the_drain(run: tuple[dict[str, Any], float, str]) -> None:
    summary, _, _ = run
    assert summary["leaked_blocks"] == 0
    assert summary["findings"] == {}
    assert summary["active_blocks_after_drain"] == 0


def test_free_cached_and_active_add_up_to_the_capacity_in_every_sample(run: tuple[dict[str, Any], float, str]) -> None:
    summary, _, _ = run
    assert summary["samples"] >= SECONDS / 2
    assert summary["problems"] == []


def test_it_leaves_no_file_behind(run: tuple[dict[str, Any], float, str]) -> None:
    _, _, directory = run
    assert directory.startswith("/dev/shm/kvledger-up-")
    assert not Path(directory).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order_and_leaves_no_process_and_no_file(number: signal.Signals) -> None:
    with up("--json") as process:
        ledgers = announced(process)
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 3
        process.send_signal(number)
        out, err = process.communicate(timeout=STOP_SECONDS)
    assert out, complaint(process, err)
    summary = json.loads(out)
    assert (summary["interrupted"], summary["active_blocks_after_drain"]) == (True, 0)
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    assert not ledgers.parent.exists()


def test_killed_outright_it_takes_its_children_with_it() -> None:
    with up("--json") as process:
        ledgers = announced(process)
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
        _, alive = psutil.wait_procs(children, timeout=STOP_SECONDS)
    shutil.rmtree(ledgers.parent)
    assert not alive


@pytest.mark.parametrize("seconds", ["-3", "0", "nan", "inf"])
def test_a_senseless_duration_is_refused_with_the_value(seconds: str) -> None:
    with up("--for", seconds) as process:
        _, err = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 2
    assert seconds in err


def test_a_file_that_is_no_trace_is_refused_before_anything_starts(tmp_path: Path) -> None:
    broken = tmp_path / "trace.csv"
    broken.write_text("no trace at all\n")
    with up("--trace", str(broken)) as process:
        _, err = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 1
    (line,) = err.splitlines()
    assert "trace.csv" in line


def test_a_load_that_cannot_start_ends_it_with_the_reason(tmp_path: Path) -> None:
    """The variable's trace is read by the load alone."""
    broken = tmp_path / "trace.csv"
    broken.write_text("no trace at all\n")
    with up(KVLEDGER_TRACE=str(broken)) as process:
        _, err = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 1
    assert "trace.csv" in err


@pytest.mark.parametrize("other", [("--no-trace",), ("--profile", "storm")])
def test_a_trace_and_another_load_are_not_both_taken(other: tuple[str, ...], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n")
    with up("--trace", str(trace), *other) as process:
        _, err = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 2
    assert other[0] in err


@pytest.mark.parametrize("argument", ["--profile", "--trace"])
def test_an_unknown_profile_or_trace_is_refused_before_anything_starts(argument: str) -> None:
    with up(argument, "nonsense") as process:
        _, err = process.communicate(timeout=STOP_SECONDS)
    assert process.returncode == 2
    assert "nonsense" in err


def test_ctrl_c_works_even_where_a_shell_started_it_in_the_background() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # what a shell without job control does for `&`
    try:
        with up("--json") as process:
            announced(process)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=STOP_SECONDS)
    finally:
        signal.signal(signal.SIGINT, before)
    assert out, complaint(process, err)


def told(process: subprocess.Popen[str], *labels: str) -> dict[str, str]:
    """Wait for the lines with these labels, which come in any order; what each says."""
    assert process.stderr is not None
    found: dict[str, str] = {}
    for line in process.stderr:
        label, _, text = line.strip().partition(" ")
        found[label] = text.strip()
        if found.keys() >= set(labels):
            return found
    raise AssertionError(f"it ended with {process.wait()} and said {found}")


def answers(url: str) -> int:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return int(answer.status)


@pytest.mark.needs("streamlit")
@pytest.mark.needs("prometheus")
@pytest.mark.needs("alertmanager")
def test_it_says_where_everything_listens_and_leaves_none_of_it_behind() -> None:
    with up("--json", "--model", "cell", "--no-trace", parts=()) as process:
        said = told(process, "try", "explorer", "alerts", "alertmanager")
        metrics = said["agent"].split()[0]
        models = said["engine"].split()[0]
        shown = [models, metrics, said["explorer"], said["alerts"], said["alertmanager"]]
        assert [answers(url) for url in shown] == [200] * 5
        children = psutil.Process(process.pid).children(recursive=True)
        assert {"prometheus", "prometheus-alertmanager"} <= {child.name() for child in children}
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=STOP_SECONDS)
    assert out, complaint(process, err)
    assert json.loads(out)["urls"] == {
        "engine": models.removesuffix("/v1/models"),
        "metrics": metrics,
        "explorer": said["explorer"],
        "prometheus": said["alerts"].removesuffix("/alerts").removesuffix("/classic"),
        "alertmanager": said["alertmanager"],
    }
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_what_cannot_be_had_is_said_in_a_line_and_is_no_problem(tmp_path: Path) -> None:
    arguments = ("--for", "8", "--json", "--model", "cell", "--no-trace")
    with up(*arguments, parts=("--no-explorer",), PATH=str(tmp_path)) as process:
        said = told(process, "try", "monitor")
        out, err = process.communicate(timeout=STOP_SECONDS)
    assert said["monitor"] == "not started: Prometheus is not installed: apt-get install prometheus"
    assert process.returncode == 0, complaint(process, err + out)
    urls = json.loads(out)["urls"]
    assert {name for name, url in urls.items() if url is None} == {"explorer", "prometheus", "alertmanager"}


def test_without_streamlit_it_says_in_a_line_what_to_install_and_goes_on(tmp_path: Path) -> None:
    # Imported by every python at its start: streamlit is then as good as not installed.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['streamlit'] = None\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    arguments = ("--for", "8", "--json", "--model", "cell", "--no-trace")
    with up(*arguments, parts=("--no-monitor",), PYTHONPATH=path) as process:
        said = told(process, "try", "explorer")
        out, err = process.communicate(timeout=STOP_SECONDS)
    remedy = "`explorer` needs streamlit, which is not installed: pip install 'kvledger[explorer]'"
    assert said["explorer"] == f"not started: {remedy}"
    assert process.returncode == 0, complaint(process, err + out)
    summary = json.loads(out)
    assert summary["urls"]["explorer"] is None
    assert summary["samples"] > 0
    assert err.count("streamlit") == 0
