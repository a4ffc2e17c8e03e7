"""`kvledger load` as people and other commands run it: arguments, JSON, exit codes and signals."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvledger_agent.errors import TraceError
from kvledger_agent.load.arguments import plan_of
from kvledger_agent.load.command import COMMAND
from kvledger_agent.load.profiles import PROFILES, REPLAY
from kvledger_agent.load.tokens import PromptAs
from tests.load.endpoint import Behaviour, Endpoint, hang, refuse, send_raw, serving, stream_all

ROOT = Path(__file__).parents[2]
CHILD = "import sys; from kvledger_agent.cli import main; sys.exit(main())"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    return parser.parse_args(arguments)


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a child process that finds `load` as an installed command."""
    info = tmp_path / "kvledger-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvledger\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[kvledger.commands]\nload = kvledger_agent.load.command:COMMAND\n")
    paths = (tmp_path, ROOT / "engine", ROOT / "agent")
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


async def started(env: dict[str, str], *arguments: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, "load", *arguments, env=env, stdout=pipe, stderr=pipe
    )


def ran(env: dict[str, str], behaviour: Behaviour, arguments: Sequence[str]) -> tuple[int, str, str, Endpoint]:
    """(exit code, stdout, stderr, endpoint) of the command against an endpoint that behaves so."""

    async def run() -> tuple[int, str, str, Endpoint]:
        async with serving(behaviour) as endpoint:
            child = await started(env, "--url", endpoint.url, *arguments)
            out, err = await child.communicate()
            assert child.returncode is not None
            return child.returncode, out.decode(), err.decode(), endpoint

    return asyncio.run(run())


def test_the_json_report_is_the_only_thing_on_stdout_and_tells_the_whole_plan(installed: dict[str, str]) -> None:
    arguments = ["--json", "--profile", "short", "--rate", "100", "--requests", "20", "--seed", "17"]
    code, out, err, endpoint = ran(installed, stream_all, arguments)

    report: dict[str, Any] = json.loads(out)
    assert code == 0
    assert report["completed"] == report["sent"] == len(endpoint.seen) == 20
    assert report["seed"] == report["parameters"]["seed"] == 17
    assert report["parameters"]["profile"]["name"] == "short"
    assert report["time_to_first_token"]["p99_seconds"] > 0
    assert report["generator_lateness"]["count"] == 20
    said = f"load: {endpoint.url}, seed 17, profile short, 100 requests/s, at most 20 requests"
    assert err.splitlines() == [said], "printed before the first request, and all there is to say"


def test_equal_commands_send_equal_requests(installed: dict[str, str]) -> None:
    arguments = ["--json", "--requests", "12", "--rate", "200", "--seed", "3", "--length-scale", "0.1"]
    first, second = (ran(installed, stream_all, arguments)[3] for _ in range(2))

    def bodies(endpoint: Endpoint) -> list[str]:
        return sorted(json.dumps([seen.body, seen.headers["X-Tenant"]]) for seen in endpoint.seen)

    assert bodies(first) == bodies(second)


def test_for_people_there_are_tables(installed: dict[str, str]) -> None:
    code, out, _, _ = ran(installed, refuse(429, "queue_full"), ["--requests", "5", "--rate", "100"])

    assert code == 0, "a refusal is an answer, not a failure"
    assert "queue_full" in out
    assert "time to first token" in out
    assert "–" in out, "what was not observed is shown as unknown"


def test_failures_make_the_exit_code_one(installed: dict[str, str]) -> None:
    code, out, _, _ = ran(installed, send_raw(b"data: {\n\n"), ["--json", "--requests", "3", "--rate", "100"])

    assert code == 1
    assert json.loads(out)["failures"] == {"bad_stream": 3}


def test_an_absent_endpoint_is_one_line_and_exit_code_one(installed: dict[str, str]) -> None:
    async def run() -> tuple[int | None, bytes, bytes]:
        child = await started(installed, "--url", "http://127.0.0.1:9", "--requests", "1")
        out, err = await child.communicate()
        return child.returncode, out, err

    code, out, err = asyncio.run(run())

    assert (code, out) == (1, b"")
    assert b"start the endpoint" in err.splitlines()[-1]
    assert b"Traceback" not in err


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGINT, signal.SIGTERM]])
def test_a_signal_ends_the_run_with_a_report(installed: dict[str, str], signals: list[signal.Signals]) -> None:
    async def run() -> tuple[int | None, dict[str, Any], Endpoint]:
        async with serving(stream_all if len(signals) == 1 else hang) as endpoint:
            arguments = ("--json", "--rate", "100", "--for", "600", "--drain", "600")
            child = await started(installed, "--url", endpoint.url, *arguments)
            await endpoint.until(lambda it: len(it.seen) >= 5)
            for number in signals:
                child.send_signal(number)
            out, _ = await asyncio.wait_for(child.communicate(), timeout=30)
            return child.returncode, json.loads(out), endpoint

    code, report, endpoint = asyncio.run(run())

    assert code == 0
    assert report["interrupted"] is True
    assert report["sent"] == report["completed" if len(signals) == 1 else "cut"] >= len(endpoint.seen) > 0


def test_arguments_become_the_plan() -> None:
    args = parsed(
        *("--profile", "storm", "--disconnect", "5", "--reconnect", "0", "--timeouts", "1.5", "--prefix-share", "80"),
        *("--prefix-tokens", "64:128", "--tenants", "7", "--prefixes-per-tenant", "2", "--seed", "11", "--rate", "3.5"),
        *("--burst", "4", "--for", "9", "--prompt-as", "text", "--no-usage", "--ignore-eos", "--drain", "1"),
        *("--max-in-flight", "99", "--patience", "8", "--token-ids-below", "1000", "--model", "m", "--requests", "6"),
    )
    plan = plan_of(args)

    profile = plan.profile
    assert (profile.disconnect_percent, profile.reconnect_percent, profile.timeout_percent) == (5.0, 0.0, 1.5)
    assert (profile.prefix_percent, profile.prefix_tokens) == (80.0, (64, 128))
    assert (plan.tenants, plan.prefixes_per_tenant, plan.seed, plan.rate_per_second, plan.burst) == (7, 2, 11, 3.5, 4)
    assert (plan.duration_seconds, plan.requests, plan.max_in_flight, plan.drain_seconds) == (9.0, 6, 99, 1.0)
    options = plan.options
    assert (options.model, options.prompt_as, options.token_ids_below) == ("m", PromptAs.TEXT, 1000)
    assert (options.ask_usage, options.ignore_eos, options.patience_seconds) == (False, True, 8.0)


def test_without_a_limit_a_profile_ends_by_itself_and_a_trace_with_its_last_row(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")

    assert plan_of(parsed()).duration_seconds == 30.0
    assert plan_of(parsed()).profile == PROFILES["mixed"]
    assert plan_of(parsed("--for", "4")).duration_seconds == 4.0
    replay = plan_of(parsed("--trace", str(trace), "--time-scale", "0.5", "--length-scale", "2"))
    assert (replay.duration_seconds, replay.requests, replay.profile) == (None, None, REPLAY)
    assert [arrival.prompt_tokens for arrival in replay.arrivals()] == [748]


def test_a_bad_trace_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none"):
        plan_of(parsed("--trace", str(tmp_path / "none")))


@pytest.mark.parametrize("bounds", ["0:5", "9:3", "x", "1:2:3"])
def test_prefix_bounds_that_are_none_are_a_usage_error(bounds: str) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("--prefix-tokens", bounds)

    assert caught.value.code == 2


def test_more_requests_in_flight_than_files_can_be_open_is_a_usage_error(installed: dict[str, str]) -> None:
    limited = ("sh", "-c", 'ulimit -n 200 && exec "$@"', "sh", sys.executable, "-c", CHILD)
    child = subprocess.run(
        [*limited, "load", "--max-in-flight", "300"], env=installed, capture_output=True, check=False
    )

    assert child.returncode == 2
    assert b"the limit is 200: lower --max-in-flight" in child.stderr


def test_the_help_text_is_complete_and_names_the_key_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help")

    shown = capsys.readouterr().out
    assert "KVLEDGER_API_KEY" in shown
    parser = argparse.ArgumentParser()
    COMMAND.configure(parser)
    assert all(action.help for action in parser._actions)
