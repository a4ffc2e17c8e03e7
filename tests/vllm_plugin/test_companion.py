"""The mirror's process: killed, stopped, behind, wrong, or alone after its engine core; nothing said is lost."""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from marshal import dumps
from pathlib import Path

import pytest

from kvledger import segment
from kvledger.reader import Reader
from kvledger.segment import SUFFIX
from kvledger.snapshot import Sample
from kvledger.source import MemorySource
from kvledger_vllm import attach as attaching
from kvledger_vllm import channel, kernel
from kvledger_vllm.attach import Instrument, attach
from kvledger_vllm.settings import Settings
from tests.vllm_plugin.fakes import Scheduler
from tests.vllm_plugin.tokenrig import Asked

MOST_MEBIBYTES = 60


@pytest.fixture
def instrument(scheduler: Scheduler, directory: Path) -> Iterator[Instrument]:
    attached = attach(scheduler, Settings(directory=directory))
    assert attached.await_applied(), attached.switch.why
    yield attached
    if attached.stop is not None:
        attached.stop()


def pid_of(instrument: Instrument) -> int:
    assert instrument.mirror is not None
    return instrument.mirror.pid


@contextmanager
def stopped(instrument: Instrument) -> Iterator[None]:
    """While its mirror stands still."""
    pid = pid_of(instrument)
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def descriptors() -> set[str]:
    """What this process has open, by what it is; a ledger's own file and mapping live as long as its instrument."""
    gc.collect()
    names = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            name = os.readlink(path)
            if SUFFIX not in name and not name.endswith("/fd"):
                names.add(f"{path.name} {name}")
    return names


def await_end(pid: int, seconds: float = 30.0) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([process], [], [], seconds)[0], "it is still there"
    os.close(process)


def sample_of(instrument: Instrument) -> Sample:
    assert instrument.ledger is not None
    return Reader.over(MemorySource(instrument.ledger.image)).sample()


def arrive(scheduler: Scheduler, first: int, count: int) -> None:
    for number in range(first, first + count):
        scheduler.add_request(Asked(f"r{number}", 5))


def until_off(instrument: Instrument, scheduler: Scheduler) -> None:
    """The engine goes on until the instrument has noticed."""
    deadline = time.monotonic() + 30
    number = 0
    while instrument.switch.on:
        assert time.monotonic() < deadline, "it was not noticed"
        arrive(scheduler, 10_000 + number, 1)
        number += 1


def test_a_mirror_that_is_killed_is_noticed_told_once_and_missed_by_nobody(
    instrument: Instrument, scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    os.kill(pid_of(instrument), signal.SIGKILL)
    with caplog.at_level(logging.ERROR, "vllm.kvledger"):
        until_off(instrument, scheduler)
        arrive(scheduler, 0, 10)
    assert len(caplog.records) == 1
    assert instrument.switch.why == "InstrumentError: the mirror ended without a word"
    assert sample_of(instrument).instrument_failure == instrument.switch.why
    assert "add_request" not in vars(scheduler)
    assert len(scheduler.requests) >= 10


def test_an_engine_that_falls_idle_looks_whether_its_mirror_lives_since_it_may_say_nothing_more_for_hours(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    assert instrument.mirror is not None
    arrive(scheduler, 0, 1)
    os.kill(pid_of(instrument), signal.SIGKILL)
    await_end(pid_of(instrument))
    instrument.mirror._looked_ns = time.monotonic_ns() + 10**12  # it has looked just now
    arrive(scheduler, 1, 1)
    assert instrument.switch.why == ""
    for name in ("r0", "r1"):
        scheduler.abort(name)
    assert "the mirror ended" in instrument.switch.why


def test_a_mirror_that_stood_still_applies_everything_when_it_goes_on(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    with stopped(instrument):
        arrive(scheduler, 0, 300)
        assert not instrument.await_applied(0.05)
        assert len(sample_of(instrument).slots) == 0
    assert instrument.await_applied()
    assert instrument.switch.on, instrument.switch.why
    sample = sample_of(instrument)
    assert (len(sample.slots), sample.stats.whole("waiting")) == (300, 300)


def test_a_mirror_that_does_not_keep_up_switches_the_instrument_off_and_blocks_nobody(
    scheduler: Scheduler, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CHANNEL_BYTES", 1 << 14)
    instrument = attach(scheduler, Settings(directory=directory))
    assert instrument.await_applied()
    os.kill(pid_of(instrument), signal.SIGSTOP)
    until_off(instrument, scheduler)
    assert "the mirror did not keep up" in instrument.switch.why
    assert sample_of(instrument).instrument_failure == instrument.switch.why
    await_end(pid_of(instrument))


def test_a_pool_whose_first_statement_is_larger_than_the_ring_has_a_larger_ring(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CHANNEL_BYTES", 1 << 14)
    scheduler = Scheduler(blocks=20_001)
    instrument = attach(scheduler, Settings(directory=directory))
    assert instrument.await_applied(), instrument.switch.why
    assert instrument.switch.why == ""
    assert sample_of(instrument).stats.whole("free_blocks") == 20_000
    assert instrument.stop is not None
    instrument.stop()


def test_a_statement_that_has_no_room_is_named_with_its_size_and_what_to_do(
    scheduler: Scheduler, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "CHANNEL_BYTES", 1 << 14)
    instrument = attach(scheduler, Settings(directory=directory))
    assert instrument.await_applied()
    scheduler.add_request(Asked("r" * (1 << 15), 5))
    assert instrument.switch.why.startswith("InstrumentError: a statement of 32,")
    assert instrument.switch.why.endswith(
        "bytes has no room in a ring of 16,384: restart vLLM, which has nothing but its pool to tell of then"
    )
    assert sample_of(instrument).instrument_failure == instrument.switch.why


def test_an_error_of_the_mirrors_own_is_in_the_ledger_and_the_engines_log(
    instrument: Instrument, scheduler: Scheduler
) -> None:
    assert instrument.tap is not None
    instrument.tap._sender.send(dumps(("not", "a", "message")))
    await_end(pid_of(instrument))
    said = sample_of(instrument).instrument_failure
    assert said is not None
    assert said.startswith("TypeError")
    until_off(instrument, scheduler)
    assert instrument.switch.why == f"InstrumentError: the mirror ended and said: {said}"


def test_a_clean_stop_closes_the_ledger_with_everything_in_it(instrument: Instrument, scheduler: Scheduler) -> None:
    assert instrument.ledger is not None
    path = instrument.ledger.path
    assert path is not None
    arrive(scheduler, 0, 500)
    assert instrument.stop is not None
    instrument.stop()
    await_end(pid_of(instrument))
    with Reader.open(path) as reader:
        sample = reader.sample()
    assert (sample.control["closed"], len(sample.slots), sample.instrument_failure) == (1, 500, None)
    assert segment.writer_of(path) is None


def test_a_stop_waits_no_longer_for_a_mirror_than_it_may_and_leaves_no_ledger_that_looks_closed(
    instrument: Instrument, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attaching, "PATIENCE_SECONDS", 0.2)
    os.kill(pid_of(instrument), signal.SIGSTOP)
    arrive(scheduler, 0, 5)
    assert instrument.stop is not None
    instrument.stop()
    await_end(pid_of(instrument))
    sample = sample_of(instrument)
    assert sample.control["closed"] == 0
    assert sample.instrument_failure == "InstrumentError: the mirror has not applied everything"


def test_what_a_killed_engine_core_had_said_is_applied_and_no_mirror_outlives_it(directory: Path) -> None:
    command = [sys.executable, "-m", "tests.vllm_plugin.core", str(directory), "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as core:
        assert core.stdout is not None
        mirror, child = map(int, core.stdout.readline().split())
        (path,) = directory.glob("*.kvledger")
        assert segment.writer_of(path) == core.pid, "the lock is the core's"
        core.kill()
        core.wait(30)
        assert segment.writer_of(path) is None, "dead, whatever the mirror still does"
        os.kill(mirror, signal.SIGCONT)
        await_end(mirror)
        os.kill(child, signal.SIGKILL)  # which was no reason to stay
    with Reader.open(path) as reader:
        sample = reader.sample()
    assert (len(sample.slots), sample.control["closed"], sample.instrument_failure) == (200, 0, None)


def test_a_mirror_ignores_what_a_terminal_sends_and_is_small(instrument: Instrument, scheduler: Scheduler) -> None:
    pid = pid_of(instrument)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(pid, number)
    arrive(scheduler, 0, 3)
    assert instrument.await_applied()
    assert os.getpgid(pid) != os.getpgid(0)
    process = Path(f"/proc/{pid}")
    words = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    private = sum(int(words[name].split()[0]) for name in ("RssAnon", "RssFile"))
    assert private < MOST_MEBIBYTES * 1024, f"{private} KiB"
    mapped = (process / "maps").read_text()
    assert not [name for name in ("/libtorch", "/vllm/") if name in mapped.lower()]


@pytest.fixture
def plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was built for an old C library, which uv's and conda's are."""
    for module, name in ((os, "memfd_create"), (os, "pidfd_open"), (signal, "pidfd_send_signal")):
        monkeypatch.delattr(module, name)


@pytest.mark.usefixtures("plain_python")
def test_a_python_that_lacks_the_newer_calls_of_the_kernel_is_no_hindrance(
    scheduler: Scheduler, directory: Path
) -> None:
    instrument = attach(scheduler, Settings(directory=directory))
    arrive(scheduler, 0, 5)
    assert instrument.await_applied(), instrument.switch.why
    assert len(sample_of(instrument).slots) == 5
    os.kill(pid_of(instrument), signal.SIGSTOP)
    assert instrument.mirror is not None
    instrument.mirror.end(0)


def test_a_kernel_that_lacks_them_is_named_with_what_to_do_and_leaves_nothing_open(
    scheduler: Scheduler, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    monkeypatch.setattr(kernel, "_PIDFD_OPEN", 9_999)
    instrument = attach(scheduler, Settings(directory=directory))
    assert instrument.switch.why.startswith(
        "InstrumentError: pidfd_open: Function not implemented: the mirror needs Linux"
    )
    assert sample_of(instrument).instrument_failure == instrument.switch.why
    arrive(scheduler, 0, 1)
    assert list(scheduler.requests) == ["r0"]
    assert descriptors() == before


@pytest.mark.parametrize("end", ["stopped", "failed"])
def test_an_instrument_that_is_over_has_given_back_every_descriptor_but_its_ledgers(
    scheduler: Scheduler, directory: Path, end: str
) -> None:
    before = descriptors()
    instrument = attach(scheduler, Settings(directory=directory))
    arrive(scheduler, 0, 5)
    assert instrument.await_applied(), instrument.switch.why
    assert descriptors() > before
    if end == "stopped":
        assert instrument.stop is not None
        instrument.stop()
    else:
        scheduler.schedule()
    assert not instrument.switch.on
    assert instrument.await_applied()
    assert descriptors() == before


def test_descriptors_beyond_the_first_1024_serve_as_well(scheduler: Scheduler, directory: Path) -> None:
    with ExitStack() as stack:
        while stack.enter_context(Path("/dev/null").open()).fileno() < 1100:
            pass
        instrument = attach(scheduler, Settings(directory=directory))
        arrive(scheduler, 0, 5)
        assert instrument.await_applied(), instrument.switch.why
        assert instrument.stop is not None
        instrument.stop()
    assert instrument.switch.why == ""
    await_end(pid_of(instrument))


def test_what_lies_in_the_directory_that_the_engine_runs_in_is_not_taken_for_pythons_own(
    scheduler: Scheduler, directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("numpy", "logging", "marshal", "select", "kvledger"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    monkeypatch.chdir(tmp_path)
    instrument = attach(scheduler, Settings(directory=directory))
    assert instrument.await_applied(), instrument.switch.why
    assert instrument.stop is not None
    instrument.stop()
    assert instrument.switch.why == ""
