"""`kvledger status`, `snapshot` and `agent` as a person runs them."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvledger.errors import BadTarget, LedgerUnreadable
from kvledger.reader import Reader
from kvledger.record import record
from kvledger.source import MemorySource
from kvledger.writer import Ledger
from kvledger_agent.cli import main
from kvledger_agent.command import Command
from kvledger_agent.commands import agent, scorecard, sharing, snapshot, status, waits
from kvledger_agent.errors import UsageError
from kvledger_agent.one_ledger import NoLedger
from kvledger_agent.screen import engine_panel
from kvledger_agent.tables import instant_text
from kvledger_agent.waits import PARTS
from tests.agent.rig import ToyWatch
from tests.children import ENVIRONMENT, ROOT, Spawn
from tests.ledger.toy import toy_limits

CHILDREN = "tests.agent.children"
needs_tmpfs = pytest.mark.needs("tmpfs")
over_a_directory = pytest.mark.parametrize(
    "command", [status.COMMAND, scorecard.COMMAND, sharing.COMMAND, waits.COMMAND], ids=lambda command: command.name
)


def run(command: Command, *arguments: object) -> int:
    """Run a subcommand as `cli.main` does."""
    parser = argparse.ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


def first_page(url: str) -> str:
    """The page at `url`, asked again while it is refused: the first sample is on its way."""
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as refused:
            refused.close()
            if refused.code != 503:
                raise
            time.sleep(0.02)


def ledger_in(directory: Path) -> Path:
    (path,) = directory.glob("*.kvledger")
    return path


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


@needs_tmpfs
def test_status_shows_pool_waits_and_refusals_on_one_screen(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(CHILDREN, "scene", memory)

    assert run(status.COMMAND, "--directory", memory) == 0

    screen = capsys.readouterr().out
    for words in (
        "golden:0",
        "scheduler_bound",
        "active 15   cached 7   free 2   of 24",
        "queue_full 46",
        "step 1",
        "shared 4",
    ):
        assert words in screen, screen


@needs_tmpfs
def test_waits_are_told_for_all_by_tenant_and_by_class_with_percentiles_and_who_waits_longest(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(CHILDREN, "scene", memory)

    assert run(waits.COMMAND, "--directory", memory, "--window", "1e6") == 0
    screen = capsys.readouterr().out
    for words in ("golden:0", "first token", "whole", "P50", "P95", "P99", "mean is made of", "tenant ", "class "):
        assert words in screen, screen
    assert re.search(r"waiting for \w+: \d+, the oldest .* \(request \d+, tenant \w+\)", screen), screen
    assert "\nallocation: " in screen

    assert run(waits.COMMAND, "--directory", memory, "--window", "1e6", "--json") == 0
    (engine,) = document(capsys)["engines"]
    view = engine["waits"]
    everybody = view["rows"][0]
    assert (engine["id"], everybody["tenant"], everybody["request_class"]) == ("golden:0", None, None)
    for timing in (everybody["first_token"], everybody["whole"]):
        assert timing["seconds"].keys() == {"mean", "p50", "p95", "p99"}
        assert sum(part["mean"] for part in timing["parts"].values()) == pytest.approx(timing["seconds"]["mean"])
        assert set(timing["parts"]) <= set(PARTS)
    assert {row["tenant"] for row in view["rows"]} > {None}
    assert {row["request_class"] for row in view["rows"]} > {None}
    assert {"cause", "waiting", "seconds", "serial", "tenant"} <= view["oldest"][0].keys()


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="window_seconds=0"):
        run(waits.COMMAND, "--window", "0")


def test_status_explains_its_bar_and_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(status.COMMAND, "--help")

    explained = " ".join(capsys.readouterr().out.split())
    for words in ("█ active", "▒ cached", "· free", "committed: blocks", "headroom: free + cached − committed"):
        assert words in explained


@needs_tmpfs
@over_a_directory
def test_as_json_there_is_one_document_per_engine_and_the_names_of_what_cannot_be_read(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str], command: Command
) -> None:
    spawn(CHILDREN, "scene", memory)
    (memory / "bad.0.00000001.kvledger").write_bytes(bytes(9000))

    assert run(command, "--directory", memory, "--json") == 1

    found = document(capsys)
    assert [engine["id"] for engine in found["engines"]] == ["golden:0"]
    assert [(bad["id"], bad["status"]) for bad in found["unreadable"]] == [("bad:0", "not_a_ledger")]


@needs_tmpfs
def test_status_watches_a_suspicious_engine_until_it_can_say_and_exits_with_one(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(CHILDREN, "leak", memory)

    assert run(status.COMMAND, "--ledger", ledger_in(memory)) == 1

    screen = capsys.readouterr().out
    assert "leaking" in screen
    assert "fix_leak" in screen
    assert "leaker" in screen


@over_a_directory
@pytest.mark.parametrize("made", [False, True])
def test_a_missing_or_empty_directory_says_how_to_get_a_ledger(tmp_path: Path, made: bool, command: Command) -> None:
    directory = tmp_path / "ledgers"
    if made:
        directory.mkdir()

    with pytest.raises(NoLedger, match=f"no ledger in {directory}: start an engine with KVLEDGER_DIR={directory}"):
        run(command, "--directory", directory)


@over_a_directory
@pytest.mark.parametrize(
    "place", ["x" * 300, "/dev/null", "/dev/zero", "/proc/self/mem", "/proc/self/status/x", "\x01"]
)
def test_what_is_no_ledger_is_said_in_one_line_whatever_it_is(
    capsys: pytest.CaptureFixture[str], place: str, command: Command
) -> None:
    assert main([command.name, f"--ledger={place}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kvledger: ")


@over_a_directory
def test_an_empty_default_directory_says_how_to_get_a_ledger_or_where_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setenv("KVLEDGER_DIR", str(tmp_path))

    with pytest.raises(NoLedger, match=f"no ledger in {tmp_path}: start one with `kvledger engine`, or .* --directory"):
        run(command)


def test_a_file_that_is_not_there_is_said_to_be_no_ledger_and_how_to_find_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVLEDGER_DIR", "/ledgers")
    for file, directory in ((tmp_path / "x", tmp_path), (tmp_path / "nowhere" / "x", "/ledgers")):
        for command, arguments in ((status.COMMAND, ["--ledger", file]), (snapshot.COMMAND, [file])):
            with pytest.raises(NoLedger, match=f"no ledger {file}: `kvledger status --directory {directory}`"):
                run(command, *arguments)


@needs_tmpfs
def test_snapshot_of_a_live_ledger_says_who_holds_what(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(CHILDREN, "scene", memory)

    assert run(snapshot.COMMAND, ledger_in(memory), "--json") == 0

    found = document(capsys)
    holders = [row for row in found["holders"] if row["blocks"]]
    assert sum(row["blocks"] for row in holders) == found["groups"][0]["logical_blocks"]
    assert all(row["id_head"].startswith("acme-") for row in holders)
    assert found["pool"]["active_blocks"] == 15


@needs_tmpfs
def test_snapshot_of_a_dead_engines_ledger_under_any_name_tells_its_leak(
    memory: Path, spawn: Spawn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = spawn(CHILDREN, "leak", memory)
    engine.send_signal(signal.SIGKILL)
    engine.wait()
    copy = shutil.copy(ledger_in(memory), tmp_path / "post-mortem")

    assert run(snapshot.COMMAND, copy) == 1

    screen = capsys.readouterr().out
    assert "dead" in screen
    assert "excess_reference" in screen
    assert "leaker" in screen


@needs_tmpfs
def test_snapshot_of_a_closed_ledger_finds_nothing(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(CHILDREN, "work", memory).communicate(timeout=20)

    assert run(snapshot.COMMAND, ledger_in(memory), "--json") == 0
    assert document(capsys)["liveness"]["status"] == "closed"


@needs_tmpfs
def test_a_saved_snapshot_shows_what_the_live_ledger_showed_and_when(
    memory: Path, spawn: Spawn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = spawn(CHILDREN, "scene", memory)
    live, saved = ledger_in(memory), tmp_path / "incident.kvrecording"
    assert run(snapshot.COMMAND, live, "--json") == 0
    shown = document(capsys)

    assert run(snapshot.COMMAND, live, "--save", saved, "--json") == 0

    told = document(capsys)
    assert (told["path"], told["engine"], told["rank"], told["status"]) == (str(saved), "golden", 0, "ok")
    assert told["bytes"] == saved.stat().st_size
    assert told["published_seq"] == shown["published_seq"]
    assert (told["blocks_in_motion"], told["requests_in_motion"]) == (0, 0)
    engine.communicate(timeout=20)
    assert run(snapshot.COMMAND, saved, "--json") == 0
    again = document(capsys)
    assert again["liveness"].pop("recorded") == {"wall_ns": told["wall_ns"], "status": "ok"}
    assert (again["liveness"].pop("status"), again["liveness"].pop("up")) == ("recorded", None)
    for key in ("status", "up", "recorded"):
        shown["liveness"].pop(key)
    assert again == shown
    assert run(snapshot.COMMAND, saved) == 0
    screen = capsys.readouterr().out
    assert f"recorded at {instant_text(told['wall_ns'])}, ok then" in screen
    assert "active 15   cached 7   free 2   of 24" in screen


@needs_tmpfs
def test_a_saved_snapshot_of_a_leaking_engine_tells_the_leak_at_once_and_saving_again_needs_force(
    memory: Path, spawn: Spawn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(CHILDREN, "leak", memory)
    saved = tmp_path / "incident.kvrecording"

    assert run(snapshot.COMMAND, ledger_in(memory), "--save", saved) == 0

    assert capsys.readouterr().out.startswith("saved leak:0 as of ")
    began = time.monotonic()
    assert run(snapshot.COMMAND, saved) == 1
    assert time.monotonic() - began < 2.0, "nothing will change: there is nothing to wait for"
    screen = capsys.readouterr().out
    assert "excess_reference" in screen
    assert "leaker" in screen
    with pytest.raises(BadTarget, match="--force"):
        run(snapshot.COMMAND, ledger_in(memory), "--save", saved)
    assert run(snapshot.COMMAND, ledger_in(memory), "--save", saved, "--force") == 0
    assert run(status.COMMAND, "--ledger", saved) == 1
    with pytest.raises(UsageError, match="say which with --save"):
        run(snapshot.COMMAND, saved, "--force")


def test_a_frozen_engine_is_frozen_in_its_recording_for_as_long_as_it_was_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger.in_memory(toy_limits())
    ledger.publish_now(idle=False)
    beat = ledger.now_ns
    monkeypatch.setattr(time, "monotonic_ns", lambda: beat + 9_000_000_000)
    with Reader.over(MemorySource(ledger.image)) as reader:
        record(reader, tmp_path / "r")
    monkeypatch.undo()

    assert run(status.COMMAND, "--ledger", tmp_path / "r") == 1

    screen = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "no heartbeat for 9.0 s" in screen
    assert "9.0 s before" in screen
    assert "frozen then" in screen


@needs_tmpfs
@needs_tmpfs
def test_of_several_starts_of_one_engine_snapshot_takes_the_last_and_of_several_engines_none(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    with Ledger.create(memory, toy_limits(engine="twice")):
        pass
    spawn(CHILDREN, "scene", memory)
    with Ledger.create(memory, toy_limits(engine="twice")):
        pass
    starts = sorted(memory.glob("twice.*.kvledger"))
    assert len(starts) == 2
    assert run(snapshot.COMMAND, "--json", *starts) == 0
    assert document(capsys)["epoch"] == 2
    with pytest.raises(UsageError, match="several engines"):
        run(snapshot.COMMAND, *memory.glob("*.kvledger"))


@needs_tmpfs
def test_agent_once_as_json_prints_every_engines_snapshot(
    memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]
) -> None:
    spawn(CHILDREN, "scene", memory)
    assert run(agent.COMMAND, "--once", "--json", "--directory", memory) == 0
    (found,) = document(capsys)["engines"]
    assert (found["id"], found["in_doubt"]) == ("golden:0", False)


@needs_tmpfs
def test_an_engine_under_suspicion_is_in_doubt_on_the_screen_and_never_healthy() -> None:
    watch = ToyWatch()
    watch.skip_free(watch.admit(2))
    output = Console(width=120, file=StringIO())
    output.print(engine_panel(watch.look()))
    screen = output.file.getvalue()  # type: ignore[attr-defined]
    assert "in doubt" in screen
    assert "healthy" not in screen


def test_snapshot_without_requests_prints_no_table_of_them(memory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger.create(memory, toy_limits(), allow_disk=True)
    ledger.publish_now(idle=True)
    ledger.close()

    assert run(snapshot.COMMAND, ledger_in(memory)) == 0

    screen = capsys.readouterr().out
    assert "closed" in screen
    assert "computed/prompt+out" not in screen


def test_snapshot_of_what_is_no_ledger_is_a_typed_error(tmp_path: Path) -> None:
    path = tmp_path / "x.kvledger"
    path.write_bytes(os.urandom(9000))

    with pytest.raises(LedgerUnreadable):
        run(snapshot.COMMAND, path)


@needs_tmpfs
def test_agent_once_prints_one_page(memory: Path, spawn: Spawn, capsys: pytest.CaptureFixture[str]) -> None:
    spawn(CHILDREN, "scene", memory)

    assert run(agent.COMMAND, "--directory", memory, "--once") == 0
    assert 'kvledger_pool_capacity_blocks{engine="golden"' in capsys.readouterr().out


@needs_tmpfs
@pytest.mark.e2e
def test_the_agent_serves_until_it_is_told_to_stop(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "scene", memory)
    command = [sys.executable, "-m", "kvledger_agent", "agent", "--json", "--directory", str(memory), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        page = first_page(ready["metrics"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0

    assert 'kvledger_engine_up{engine="golden",model="cell",rank="0"} 1.0' in page
    assert ready["url"].startswith("http://127.0.0.1:")


@pytest.mark.e2e
def test_an_agent_whose_directory_is_not_there_yet_waits_for_it_and_names_its_addresses(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    command = [sys.executable, "-m", "kvledger_agent", "agent", "--directory", str(directory), "--port", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, **pipes) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        first_page(ready.split()[4].rstrip(","))
        process.send_signal(signal.SIGTERM)
        log = process.communicate(timeout=10)[1]

    assert ready.startswith(f"watching {directory}; metrics at http://127.0.0.1:")
    assert ready.endswith("/v1/engines\n")
    assert log.count(f"waiting for {directory} to appear") == 1
    assert "rror" not in log


@needs_tmpfs
@pytest.mark.e2e
def test_a_port_in_use_is_one_clear_line(memory: Path) -> None:
    command = [sys.executable, "-m", "kvledger_agent", "agent", "--json", "--directory", str(memory), "--port"]
    with subprocess.Popen([*command, "0"], cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        port = json.loads(first.stdout.readline())["url"].rpartition(":")[2]
        second = subprocess.run([*command, port], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
        first.terminate()

    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(f"kvledger: 127.0.0.1:{port}:")


@needs_tmpfs
@pytest.mark.e2e
def test_status_can_be_watched_as_json_lines(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "scene", memory)
    command = [sys.executable, "-m", "kvledger_agent", "status", "--json", "--watch", "--directory", str(memory)]
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0

    assert [line["engines"][0]["id"] for line in lines] == ["golden:0"] * 2
