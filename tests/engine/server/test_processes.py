"""Two processes that end as one: whichever is told or killed, clients hear of it and every block is given back."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvledger.segment import filesystem_type
from kvledger.status import ReadStatus
from tests.engine.server.client import Answer, Client, first_event, read_stream, talk
from tests.engine.server.process import DEADLINE_SECONDS, EngineProcess, command, engine, environment, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

SLOW = ("--step-time", "base=5ms")
LONG: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 4000, "temperature": 0}
SHORT: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 60, "temperature": 0}


def assert_empty(process: EngineProcess, status: ReadStatus) -> None:
    sample = process.sample()
    assert sample.status is status
    assert (sample.stats.gauge("active_blocks"), len(sample.slots), sample.writer_pid) == (0, 0, None)


def check(answer: Answer, code: str) -> None:
    assert (answer.status, answer.error["code"], answer.error["retryable"]) == (503, code, True)
    assert int(answer.headers["Retry-After"]) >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_open_requests_finish_refuses_new_ones_and_closes_the_ledger(
    directory: Path, number: signal.Signals
) -> None:
    with engine(directory, *SLOW) as process:

        async def conversation(client: Client) -> None:
            async with client.streaming(**SHORT) as response:
                await first_event(response)
                process.signal(number)
                while (health := await client.get("/health")).status == 200:
                    await asyncio.sleep(0.005)
                check(health, "draining")
                check(await client.complete(**SHORT), "draining")
                check(await client.post("{"), "draining")
                answer = await read_stream(response)
            assert answer.done
            assert answer.events[-1]["choices"][0]["finish_reason"] == "length"
            assert process.wait() == (0, "")

        talk(process.url, conversation)
        assert process.core.ended_within(0)
        assert process.counter("rejections_total", reason="draining") == 2
        assert_empty(process, ReadStatus.CLOSED)


def test_an_idle_engine_ends_at_once_and_leaves_no_other_file(directory: Path) -> None:
    with engine(directory) as process:
        ledger = Path(process.ready["ledger"])
        assert process.stop() == (0, "")
        assert_empty(process, ReadStatus.CLOSED)
        assert [path for path in directory.iterdir() if not path.name.endswith(".lock")] == [ledger]


@pytest.mark.parametrize("asked_again", [True, False])
def test_a_second_signal_or_the_drain_timeout_cancels_what_still_runs(directory: Path, asked_again: bool) -> None:
    timeout = "60" if asked_again else "0.2"
    with engine(directory, *SLOW, "--drain-timeout", timeout) as process:

        async def conversation(client: Client) -> None:
            async with client.streaming(**LONG) as response:
                whole = asyncio.create_task(client.complete(**LONG))
                await first_event(response)
                while process.gauge("running") < 2:
                    await asyncio.sleep(0.005)
                process.signal(signal.SIGTERM)
                while asked_again and (await client.get("/health")).status == 200:
                    await asyncio.sleep(0.005)
                if asked_again:
                    process.signal(signal.SIGTERM)
                answer = await read_stream(response)
            assert (answer.error["code"], answer.done) == ("cancelled", True)
            check(await whole, "cancelled")

        talk(process.url, conversation)
        assert process.wait() == (0, "")
        assert process.counter("cancellations_total", cause="api") == 2
        assert_empty(process, ReadStatus.CLOSED)


def test_sigterm_to_the_core_alone_drains_and_closes_it(directory: Path) -> None:
    with engine(directory, *SLOW) as process:

        async def conversation(client: Client) -> None:
            async with client.streaming(**SHORT) as response:
                await first_event(response)
                process.core.send(signal.SIGTERM)
                answer = await read_stream(response)
            assert answer.events[-1]["choices"][0]["finish_reason"] == "length"

        talk(process.url, conversation)
        assert process.core.ended_within(DEADLINE_SECONDS)
        assert_empty(process, ReadStatus.CLOSED)
        assert process.stop() == (0, "")


def test_a_killed_core_is_told_to_every_client_old_and_new(directory: Path) -> None:
    with engine(directory, *SLOW) as process:

        async def conversation(client: Client) -> None:
            async with client.streaming(**LONG) as response:
                whole = asyncio.create_task(client.complete(**LONG))
                await first_event(response)
                while process.gauge("running") < 2:
                    await asyncio.sleep(0.005)
                process.core.kill()
                answer = await read_stream(response)
            assert (answer.error["code"], answer.done) == ("engine_error", True)
            check(await whole, "engine_error")
            check(await client.complete(**SHORT), "engine_error")
            check(await client.stream(**SHORT), "engine_error")
            check(await client.get("/health"), "engine_error")
            malformed = await client.post("{")
            assert (malformed.status, malformed.error["code"]) == (400, "bad_request")

        talk(process.url, conversation)
        assert process.sample().status is ReadStatus.DEAD
        code, stderr = process.stop()
        assert code == 1
        assert f"core=ended pid={process.core.pid} exit_code=-9" in stderr
        assert "Traceback" not in stderr


def test_a_killed_http_process_ends_the_core_which_gives_everything_back_and_is_seen_as_dead(directory: Path) -> None:
    with engine(directory, *SLOW) as process:

        async def conversation(client: Client) -> None:
            async with client.streaming(**LONG) as response:
                await first_event(response)
                process.signal(signal.SIGKILL)
                assert process.core.ended_within(DEADLINE_SECONDS)

        talk(process.url, conversation)
        assert process.wait() == (-signal.SIGKILL, "")
        assert process.counter("cancellations_total", cause="disconnect") == 1
        assert_empty(process, ReadStatus.DEAD)  # nobody asked for this end: KvledgerEngineDown has to fire


@pytest.mark.slow
def test_a_core_that_hangs_is_killed_when_the_engine_is_told_to_stop(directory: Path) -> None:
    with engine(directory, "--drain-timeout", "0") as process:
        process.core.send(signal.SIGSTOP)
        code, stderr = process.stop()
        assert code == 1
        assert "core=stuck action=kill" in stderr
        assert process.core.ended_within(0)


def test_a_fault_that_is_switched_on_happens(directory: Path) -> None:
    with engine(directory, *SLOW, "--fault", "skipped_free") as process:

        async def conversation(client: Client) -> None:
            async with client.streaming(**LONG) as response:
                await first_event(response)

        talk(process.url, conversation)
        eventually(lambda: len(process.sample().slots) == 0, "the request has ended")
        assert process.gauge("active_blocks") > 0
        assert process.stop() == (0, "")


@pytest.mark.parametrize(("model", "in_the_core"), [("cell", False), ("embedded", True)])
def test_torch_is_in_a_core_that_has_a_model_of_tensors_and_never_where_http_is(
    directory: Path, model: str, in_the_core: bool
) -> None:
    def has_torch(pid: int) -> bool:
        return "torch" in Path(f"/proc/{pid}/maps").read_text()

    with engine(directory, "--model", model) as process:
        talk(process.url, _complete)
        assert has_torch(process.core.pid) is in_the_core
        assert not has_torch(process.ready["pid"])
        assert process.stop()[0] == 0


def test_a_next_start_takes_over_the_counters(directory: Path) -> None:
    with engine(directory) as first:
        talk(first.url, lambda client: _complete(client))
        steps = first.counter("engine_steps_total")
        first.stop()
    with engine(directory) as second:
        assert second.counter("engine_steps_total") == steps > 0
        assert second.counter("engine_restarts_total") == 1
        second.stop()


async def _complete(client: Client) -> None:
    assert (await client.complete(**SHORT)).status == 200


def start(directory: Path, *arguments: str, limit_file_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    """A start that is expected to fail."""

    def limit() -> None:
        if limit_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit_file_bytes, limit_file_bytes))

    return subprocess.run(
        command("--directory", str(directory), "--port", "0", *arguments),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        preexec_fn=limit,
        check=False,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in words), line


def test_a_second_engine_of_the_same_name_is_refused_in_one_line_that_names_the_file(directory: Path) -> None:
    with engine(directory) as process:
        assert_one_line(start(directory), 1, process.ready["ledger"], "another name or rank")
        assert process.stop() == (0, "")


def test_a_file_system_without_room_is_told_in_one_line_and_leaves_no_ledger(directory: Path) -> None:
    # A limit on file size is what a full tmpfs is to the writer: posix_fallocate fails, nothing is killed by a signal.
    assert_one_line(start(directory, limit_file_bytes=1 << 20), 1, "ledger needs", "lower capacity_blocks")
    assert list(directory.glob("*.kvledger")) == []


def test_a_directory_on_disk_is_refused_in_one_line_unless_allowed(tmp_path: Path) -> None:
    if filesystem_type(tmp_path) in ("tmpfs", "ramfs"):
        tmp_path = Path.cwd()
    assert_one_line(start(tmp_path), 1, str(tmp_path), "/dev/shm")


def test_a_port_in_use_is_told_in_one_line_before_a_ledger_is_made(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = start(directory, "--port", str(taken.getsockname()[1]))
    assert_one_line(done, 1, "--port")
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--watermark", "5000"), ("--step-time", "soon"), ("--max-num-seqs", "0")])
def test_arguments_that_make_no_engine_are_a_usage_error(directory: Path, arguments: tuple[str, ...]) -> None:
    assert_one_line(start(directory, *arguments), 2, arguments[1])
