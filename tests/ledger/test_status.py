"""What a ledger says of its engine, from the words and clocks alone."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.errors import Busy, NotALedger, NotPermitted, OtherVersion, SameProcess, Truncated
from kvledger.reader import Reader, probe
from kvledger.source import MemorySource
from kvledger.statsview import StatsView
from kvledger.status import ReadStatus, frozen_after_seconds, status_of, status_of_error, step_p99_seconds
from kvledger.writer import Ledger
from tests.children import Spawn
from tests.ledger.toy import toy_limits


def _status(**changed: object) -> ReadStatus:
    healthy: dict[str, object] = {
        "abandoned": False,
        "closed": False,
        "locked": True,
        "idle": False,
        "heartbeat_age_seconds": 0.1,
        "frozen_after_seconds": 3.0,
    }
    return status_of(**healthy | changed)  # type: ignore[arg-type]


def test_a_locked_working_engine_with_a_fresh_heartbeat_is_ok() -> None:
    assert _status() is ReadStatus.OK


def test_an_old_heartbeat_means_frozen_only_beyond_the_limit_and_only_with_work() -> None:
    assert _status(heartbeat_age_seconds=3.0) is ReadStatus.OK
    assert _status(heartbeat_age_seconds=3.01) is ReadStatus.FROZEN
    assert _status(heartbeat_age_seconds=1e9, idle=True) is ReadStatus.IDLE
    assert _status(heartbeat_age_seconds=None) is ReadStatus.OK


@given(st.booleans(), st.booleans(), st.none() | st.floats(0, 1e9))
def test_without_a_lock_nothing_is_alive(idle: bool, closed: bool, age: float | None) -> None:
    expected = ReadStatus.CLOSED if closed else ReadStatus.DEAD
    assert _status(locked=False, idle=idle, closed=closed, heartbeat_age_seconds=age) is expected


@given(st.booleans(), st.booleans(), st.booleans())
def test_a_superseded_ledger_is_abandoned_however_it_ended(closed: bool, locked: bool, idle: bool) -> None:
    assert _status(abandoned=True, closed=closed, locked=locked, idle=idle) is ReadStatus.ABANDONED


def test_errors_have_a_status() -> None:
    assert status_of_error(OtherVersion()) is ReadStatus.OTHER_VERSION
    assert status_of_error(NotALedger()) is ReadStatus.NOT_A_LEDGER
    assert status_of_error(Truncated()) is ReadStatus.TRUNCATED
    assert status_of_error(NotPermitted()) is ReadStatus.NOT_PERMITTED
    assert status_of_error(SameProcess()) is ReadStatus.NOT_PERMITTED
    assert status_of_error(PermissionError()) is ReadStatus.NOT_PERMITTED
    assert status_of_error(FileNotFoundError()) is ReadStatus.NOT_A_LEDGER
    assert status_of_error(Busy()) is ReadStatus.LAST_GOOD


def _stats(*steps: tuple[str, float, int]) -> StatsView:
    ledger = Ledger.in_memory(toy_limits(), clock=VirtualClock())
    for phase, seconds, count in steps:
        ledger.stats.histogram("step", phase=phase).observe(seconds, count)
    ledger.publish_now()
    return Reader.over(MemorySource(ledger.image)).sample().stats


def test_slow_steps_move_the_limit_to_twenty_of_them() -> None:
    assert frozen_after_seconds(_stats()) == 3.0
    assert frozen_after_seconds(_stats(("model", 0.02, 1000))) == 3.0
    stats = _stats(("model", 0.9, 1000), ("schedule", 0.004, 1000))
    assert step_p99_seconds(stats) == pytest.approx(1.005)
    assert frozen_after_seconds(stats) == pytest.approx(20.1)


def test_one_slow_step_in_a_thousand_does_not_move_the_limit() -> None:
    assert step_p99_seconds(_stats(("model", 0.02, 999), ("model", 9.0, 1))) == 0.025


# -- on real processes ------------------------------------------------------------------------------------------------


def _path(directory: Path) -> Path:
    return next(directory.glob("*.kvledger"))


@pytest.mark.needs("tmpfs")
def test_a_live_idle_engine_stays_idle_however_old_its_heartbeat(memory: Path, spawn: Spawn) -> None:
    child = spawn("hold", memory)
    with Reader.open(_path(memory)) as reader:
        sample = reader.sample(time.monotonic_ns() + 3600 * 10**9)
    assert sample.status is ReadStatus.IDLE
    assert sample.writer_pid == child.pid
    assert sample.heartbeat_age_seconds is not None
    assert 3600 <= sample.heartbeat_age_seconds < 3700


@pytest.mark.needs("tmpfs")
def test_an_engine_with_work_and_no_heartbeat_is_frozen(memory: Path, spawn: Spawn) -> None:
    spawn("stop_working", memory)
    with Reader.open(_path(memory)) as reader:
        assert reader.sample().status is ReadStatus.OK
        assert reader.sample(time.monotonic_ns() + 4 * 10**9).status is ReadStatus.FROZEN


@pytest.mark.needs("tmpfs")
def test_a_stopped_process_still_holds_its_lock_and_a_killed_one_does_not(memory: Path, spawn: Spawn) -> None:
    child = spawn("stop_working", memory)
    with Reader.open(_path(memory)) as reader:
        os.kill(child.pid, signal.SIGSTOP)
        later = time.monotonic_ns() + 4 * 10**9
        assert reader.sample(later).status is ReadStatus.FROZEN
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        sample = reader.sample(later)
        assert sample.status is ReadStatus.DEAD
        assert sample.writer_pid is None
        assert sample.now_ns == sample.clock_ns, "time goes on for a dead engine"


@pytest.mark.needs("tmpfs")
def test_a_clean_stop_is_closed(memory: Path, spawn: Spawn) -> None:
    child = spawn("hold", memory)
    path = _path(memory)
    assert probe(path) is ReadStatus.IDLE
    assert child.stdin is not None
    child.stdin.close()
    child.wait()
    assert probe(path) is ReadStatus.CLOSED


def test_a_virtual_ledger_has_its_own_time_and_no_heartbeat_age() -> None:
    clock = VirtualClock()
    ledger = Ledger.in_memory(toy_limits(), clock=clock)
    clock.advance(5)
    ledger.publish_now(idle=False)
    sample = Reader.over(MemorySource(ledger.image)).sample(time.monotonic_ns() + 10**12)
    assert sample.head.virtual_clock
    assert sample.heartbeat_age_seconds is None
    assert sample.status is ReadStatus.OK
    assert sample.now_ns == sample.clock_ns == clock.now_ns()
