"""What may be opened as a ledger, by whom, and what everything else is called."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvledger.errors import LedgerUnreadable, NotALedger, OtherVersion, SameProcess, Truncated
from kvledger.reader import Reader, probe
from kvledger.source import FileSource, MemorySource
from kvledger.status import ReadStatus
from kvledger.writer import Ledger
from tests.children import ROOT, Spawn
from tests.ledger.damage import seal
from tests.ledger.toy import toy_limits

STRANGER = 54321
pytestmark = [pytest.mark.needs("tmpfs")]


@pytest.fixture
def ledger_file(memory: Path, spawn: Spawn) -> Path:
    """The file of a live writer in another process."""
    spawn("hold", memory)
    return next(memory.glob("*.kvledger"))


def _symlink(path: Path, target: Path) -> None:
    path.symlink_to(target)


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _directory(path: Path, _: Path) -> None:
    path.mkdir()


def _socket(path: Path, _: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path))


def _empty(path: Path, _: Path) -> None:
    path.touch()


def _text(path: Path, _: Path) -> None:
    path.write_bytes(b"not a ledger" * 1000)


def _cut(path: Path, target: Path) -> None:
    path.write_bytes(target.read_bytes()[:-4096])


def _cut_in_description(path: Path, target: Path) -> None:
    path.write_bytes(target.read_bytes()[:5000])


def _later_version(path: Path, target: Path) -> None:
    path.write_bytes(target.read_bytes()[:8] + b"\x63\x00" + target.read_bytes()[10:])


def _other_byte_order(path: Path, target: Path) -> None:
    data = target.read_bytes()
    path.write_bytes(data[:12] + data[12:16][::-1] + data[16:])


def _flipped_bit(path: Path, target: Path) -> None:
    data = bytearray(target.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)


CASES: list[tuple[Callable[[Path, Path], None], type[LedgerUnreadable], ReadStatus]] = [
    (_symlink, NotALedger, ReadStatus.NOT_A_LEDGER),
    (_fifo, NotALedger, ReadStatus.NOT_A_LEDGER),
    (_directory, NotALedger, ReadStatus.NOT_A_LEDGER),
    (_socket, NotALedger, ReadStatus.NOT_A_LEDGER),
    (_empty, Truncated, ReadStatus.TRUNCATED),
    (_text, NotALedger, ReadStatus.NOT_A_LEDGER),
    (_cut, Truncated, ReadStatus.TRUNCATED),
    (_cut_in_description, Truncated, ReadStatus.TRUNCATED),
    (_later_version, OtherVersion, ReadStatus.OTHER_VERSION),
    (_other_byte_order, OtherVersion, ReadStatus.OTHER_VERSION),
    (_flipped_bit, NotALedger, ReadStatus.NOT_A_LEDGER),
]


@pytest.mark.parametrize(("make", "error", "status"), CASES, ids=[case[0].__name__.strip("_") for case in CASES])
def test_what_is_no_readable_ledger_is_refused_by_type(
    memory: Path, ledger_file: Path, make: Callable[[Path, Path], None], error: type, status: ReadStatus
) -> None:
    path = memory / "candidate.kvledger"
    make(path, ledger_file)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(error):
        Reader.open(path)
    assert probe(path) is status
    assert len(os.listdir("/proc/self/fd")) == before, "a refused file was left open"


def test_a_missing_file_is_missing_and_a_probe_of_it_does_not_raise(memory: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Reader.open(memory / "nothing")
    assert probe(memory / "nothing") is ReadStatus.NOT_A_LEDGER


def test_a_file_cut_short_while_it_is_read_is_truncated_not_fatal(memory: Path) -> None:
    with Ledger.in_memory(toy_limits()) as ledger:
        path = memory / "copy"
        path.write_bytes(ledger.image)
    with Reader.open(path) as reader:
        reader.sample()
        os.truncate(path, 20_000)
        with pytest.raises(Truncated):
            reader.sample()
        with pytest.raises(Truncated):
            reader.audit()
        with pytest.raises(Truncated):
            reader.events(0)


def test_the_writing_process_itself_is_refused_and_keeps_its_lock(memory: Path, spawn: Spawn) -> None:
    with Ledger.create(memory, toy_limits()) as ledger:
        assert ledger.path is not None
        with pytest.raises(SameProcess):
            Reader.open(ledger.path)
        child = spawn("read", ledger.path, ready=None)
        assert child.stdout is not None
        assert child.stdout.read() == "idle 0 64\n", "the refused open dropped the writer's lock"


def test_a_ledger_of_another_boot_is_read_but_its_heartbeat_has_no_age(memory: Path) -> None:
    with Ledger.in_memory(toy_limits()) as ledger:
        data = bytearray(ledger.image)
    data[40:56] = bytes(16)
    seal(data)
    path = memory / "foreign.kvledger"
    path.write_bytes(data)
    with Reader.open(path) as reader:
        sample = reader.sample()
    assert sample.heartbeat_age_seconds is None
    assert sample.status is ReadStatus.DEAD
    assert sample.now_ns == sample.clock_ns


def test_memory_is_bounded_like_a_file() -> None:
    source = MemorySource(b"abcdef")
    assert source.read(2, 3) == b"cde"
    with pytest.raises(Truncated):
        source.read(4, 3)
    with pytest.raises(Truncated):
        source.read_into(4, np.empty(3, np.uint8))


# -- other users ------------------------------------------------------------------------------------------------------


# The code may lie where another user cannot read it, so it is imported before the user changes.
_READ_AS = """
import os, sys
from pathlib import Path
from kvledger.errors import LedgerError
from kvledger.reader import Reader
path, user, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups]); os.setgid(int(user)); os.setuid(int(user))
try:
    print(Reader.open(Path(path)).sample().status.value)
except LedgerError as error:
    print(type(error).__name__, error)
"""


def _read_as(path: Path, *, user: int, groups: list[int]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _READ_AS, *map(str, (path, user, *groups))],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT / "engine")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def shared_file(memory: Path, spawn: Spawn) -> Path:
    """A live ledger in a directory with a group, as a deployment sets it up."""
    os.chown(memory, -1, STRANGER + 1)
    memory.chmod(0o2750)
    spawn("hold", memory)
    return next(memory.glob("*.kvledger"))


@pytest.mark.needs("root")
def test_another_user_of_the_directorys_group_reads_a_live_ledger(shared_file: Path) -> None:
    assert shared_file.stat().st_gid == STRANGER + 1
    assert oct(shared_file.stat().st_mode & 0o777) == "0o640"
    assert _read_as(shared_file, user=STRANGER, groups=[STRANGER + 1]) == "idle"


@pytest.mark.needs("root")
def test_another_user_without_the_group_is_told_what_to_do(shared_file: Path) -> None:
    said = _read_as(shared_file, user=STRANGER, groups=[])
    assert said.startswith("NotPermitted"), said
    assert "group" in said or "may not enter" in said


@pytest.mark.needs("root")
def test_a_file_that_anybody_may_read_is_still_refused_to_strangers(shared_file: Path) -> None:
    shared_file.parent.chmod(0o755)
    shared_file.chmod(0o644)
    said = _read_as(shared_file, user=STRANGER, groups=[])
    assert said.startswith("NotPermitted"), said
    assert "owned by uid 0" in said


def test_a_source_can_be_closed_twice(memory: Path) -> None:
    with Ledger.in_memory(toy_limits()) as ledger:
        path = memory / "copy"
        path.write_bytes(ledger.image)
    source = FileSource(path)
    source.close()
    source.close()
