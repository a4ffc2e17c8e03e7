"""How a ledger file comes into being: whole or not at all, once per engine, in memory, for its group."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvledger import segment
from kvledger.errors import AlreadyWritten, NotMemory
from kvledger.layout import plan_layout
from kvledger.reader import Reader
from kvledger.writer import Ledger
from tests.children import Spawn
from tests.ledger.toy import toy_limits

pytestmark = [pytest.mark.needs("tmpfs")]


def test_names_are_engine_rank_and_epoch(memory: Path) -> None:
    path = segment.ledger_path(memory, "llama.8b", 3, 12)
    assert path.name == "llama.8b.3.00000012.kvledger"
    assert segment.parse_name(path) == ("llama.8b", 3, 12)
    assert segment.parse_name(memory / "notes.txt") is None


def test_epochs_of_an_engine_come_oldest_first_and_alone(memory: Path) -> None:
    for engine, rank, epoch in (("a", 0, 2), ("a", 0, 1), ("a", 1, 5), ("ab", 0, 9)):
        segment.ledger_path(memory, engine, rank, epoch).touch()
    assert [epoch for epoch, _ in segment.epochs(memory, "a", 0)] == [1, 2]


def test_directory_and_file_are_for_owner_and_group_only(memory: Path) -> None:
    with Ledger.create(memory / "new" / "deep", toy_limits()) as ledger:
        assert ledger.path is not None
        assert oct(ledger.path.stat().st_mode & 0o7777) == "0o640"
        assert oct(ledger.path.parent.stat().st_mode & 0o7777) == "0o2750"


def test_the_file_is_allocated_and_not_sparse(memory: Path) -> None:
    with Ledger.create(memory, toy_limits()) as ledger:
        assert ledger.path is not None
        status = ledger.path.stat()
        assert status.st_blocks * 512 >= status.st_size == ledger.layout.file_bytes


def test_a_second_live_writer_is_refused_and_told_the_file(memory: Path, spawn: Spawn) -> None:
    child = spawn("hold", memory)
    with pytest.raises(AlreadyWritten) as caught:
        Ledger.create(memory, toy_limits(engine="held"))
    assert "held.0.00000001.kvledger" in str(caught.value)
    assert str(child.pid) in str(caught.value)
    with Ledger.create(memory, toy_limits(engine="other")):
        pass


def test_a_second_writer_in_the_same_process_is_refused(memory: Path) -> None:
    with Ledger.create(memory, toy_limits()), pytest.raises(AlreadyWritten):
        Ledger.create(memory, toy_limits())


def test_a_dead_writers_place_is_free_again(memory: Path, spawn: Spawn) -> None:
    child = spawn("hold", memory)
    child.kill()
    child.wait()
    with Ledger.create(memory, toy_limits(engine="held")) as ledger:
        assert ledger.epoch == 2


def test_a_directory_on_disk_is_refused_unless_it_is_allowed(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "filesystem_type", lambda path: "ext4")
    with pytest.raises(NotMemory, match="ext4"):
        Ledger.create(memory, toy_limits())
    with Ledger.create(memory, toy_limits(), allow_disk=True) as ledger:
        assert ledger.path is not None


def test_the_file_system_of_a_directory_is_known(memory: Path) -> None:
    assert segment.filesystem_type(memory) == "tmpfs"
    assert segment.filesystem_type(Path("/proc")) == "proc"


def test_what_a_start_that_died_left_behind_is_removed(memory: Path) -> None:
    left = memory / f"{segment.temporary_prefix(plan_layout(toy_limits()))}abc"
    left.touch()
    with Ledger.create(memory, toy_limits()):
        assert not left.exists()


def test_a_failed_start_leaves_no_file(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: segment.Segment, path: Path, head: bytes) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(segment.Segment, "reveal", fail)
    with pytest.raises(RuntimeError):
        Ledger.create(memory, toy_limits())
    assert [path.name for path in memory.iterdir() if path.suffix != ".lock"] == []


def test_a_reader_sees_a_new_ledger_complete_or_not_at_all(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    reveal = segment.Segment.reveal

    def look_first(self: segment.Segment, path: Path, head: bytes) -> None:
        seen.append([p.name for p in memory.glob("*.kvledger")])
        reveal(self, path, head)

    monkeypatch.setattr(segment.Segment, "reveal", look_first)
    ledger = Ledger.create(memory, toy_limits())
    path = ledger.path
    assert path is not None
    ledger.close()
    assert seen == [[]]
    with Reader.open(path) as reader:
        assert reader.sample().published_seq == 2


def test_a_file_size_limit_is_a_clear_error(memory: Path, spawn: Spawn) -> None:
    child = spawn("create", memory, 1000, 50_000, ready=None)
    assert child.stdout is not None
    said = child.stdout.read()
    assert said.startswith("NoSpace"), said
    assert child.wait() == 0


@pytest.mark.needs("mount")
def test_a_full_tmpfs_is_a_clear_error_at_the_start_and_no_bus_error_later(tiny_tmpfs: Path, spawn: Spawn) -> None:
    child = spawn("create", tiny_tmpfs, 10_000, 0, ready=None)
    assert child.stdout is not None
    said = child.stdout.read()
    assert said.startswith("NoSpace"), said
    assert "bytes free" in said
    assert "lower capacity_blocks" in said
    assert child.wait() == 0, "killed by a signal"
    assert [path.name for path in tiny_tmpfs.iterdir() if path.suffix != ".lock"] == []
    small = spawn("create", tiny_tmpfs, 100, 0, ready=None)
    assert small.stdout is not None
    assert small.stdout.read() == "created\n"
    assert os.statvfs(tiny_tmpfs).f_bavail > 0
