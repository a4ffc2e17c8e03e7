"""Recordings: what the ledger showed at an instant, in a file that stays as it is and is taken for no live ledger."""

from __future__ import annotations

import os
import random
import signal
import stat
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from kvledger.audit import Audit
from kvledger.clock import VirtualClock
from kvledger.errors import BadTarget, LedgerUnreadable, LedgerUnwritable, NoSpace, NotALedger
from kvledger.invariants import counts, suspects
from kvledger.layout import CONTROL_INDEX
from kvledger.reader import Reader, probe
from kvledger.record import Saved, record
from kvledger.recording import is_recording
from kvledger.segment import epochs
from kvledger.snapshot import Sample, SlotTable
from kvledger.source import MemorySource
from kvledger.status import ReadStatus
from kvledger.words import FindingKind, RequestState
from kvledger.writer import Ledger
from tests.children import Spawn
from tests.ledger.test_audit import SECTIONS
from tests.ledger.test_reader import Rig
from tests.ledger.toy import Toy, toy_limits
from tests.reliability.promises import promised_findings

MOVING = [name for name in SECTIONS if name != "control"]
needs_tmpfs = pytest.mark.needs("tmpfs")


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "saved.kvrecording"


def only(directory: Path) -> Path:
    return next(directory.glob("*.kvledger"))


def column(reader: Reader, name: str) -> np.ndarray:
    """A section of the file as it lies there."""
    section = reader.head.sections[name]
    return np.frombuffer(reader.source.read(section.offset, section.nbytes), section.dtype)


def assert_same_sample(ours: Sample, theirs: Sample) -> None:
    assert (ours.stats.values == theirs.stats.values).all()
    for column in (f.name for f in fields(SlotTable)):
        assert (getattr(ours.slots, column) == getattr(theirs.slots, column)).all(), column
    for column in ("entry", "block", "kind", "holder", "since_ns", "lease_ns"):
        assert (getattr(ours.pins, column) == getattr(theirs.pins, column)).all(), column
    assert ours.control == theirs.control
    assert (ours.tenants, ours.published_seq, ours.clock_ns) == (theirs.tenants, theirs.published_seq, theirs.clock_ns)


# -- what a recording shows -------------------------------------------------------------------------------------------


def test_a_recording_of_a_ledger_at_rest_shows_all_that_the_ledger_shows(rig: Rig, target: Path) -> None:
    for _ in range(80):
        rig.toy.step()
    saved = record(rig.reader, target)
    live, audit = rig.reader.sample(), rig.reader.audit()
    with Reader.open(target) as reader:
        assert_same_sample(reader.sample(), live)
        again = reader.audit()
        for name in ("changed_seq", "owner", "prefix_hash", "share_clock", "allocated_ns", "tenant", "evict_ticket"):
            assert (again.column(name) == audit.column(name)).all(), name
        assert again.tables.blocks.tolist() == audit.tables.blocks.tolist()
        assert again.free.tolist() == audit.free.tolist()
        assert again.quiescent
        assert counts(reader.sample(), again) == {}
        assert (reader.events(0).records == rig.reader.events(0).records).all()
        assert (reader.summaries(0).records == rig.reader.summaries(0).records).all()
        assert reader.events(0).lost == rig.reader.events(0).lost > 0
        assert (reader.peaks() == rig.reader.peaks()).all()
    assert (saved.recording.blocks_in_motion, saved.recording.requests_in_motion) == (0, 0)
    assert (saved.engine, saved.published_seq) == ("toy", live.published_seq)


@needs_tmpfs
def test_a_recording_stays_as_old_as_it_was_and_says_when_it_was_made(memory: Path, spawn: Spawn, target: Path) -> None:
    spawn("hold", memory)
    saved = record(only(memory), target)
    with Reader.open(target) as reader:
        sample, later = reader.sample(), reader.sample(now_ns=1 << 62)
        assert reader.audit().now_ns == saved.recording.now_ns
    assert sample.status is later.status is ReadStatus.RECORDED
    assert sample.status_then is ReadStatus.IDLE
    assert sample.now_ns == later.now_ns == saved.recording.monotonic_ns == saved.recording.now_ns
    assert sample.heartbeat_age_seconds == later.heartbeat_age_seconds == saved.recording.heartbeat_age_seconds
    assert sample.heartbeat_age_seconds == pytest.approx((sample.now_ns - sample.clock_ns) / 1e9)
    assert sample.head.recording == saved.recording
    assert probe(target) is ReadStatus.RECORDED


@needs_tmpfs
@pytest.mark.parametrize("ending", ["closed", "dead", "frozen", "abandoned"])
def test_a_recording_keeps_the_status_that_the_ledger_had(
    memory: Path, spawn: Spawn, target: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = spawn("stop_working" if ending == "frozen" else "hold", memory)
    path = only(memory)
    if ending == "frozen":
        monkeypatch.setattr("kvledger.status.FROZEN_AFTER_SECONDS", 0.0)
        monkeypatch.setattr("kvledger.status.FROZEN_AFTER_STEPS", 0)
    else:
        engine.send_signal(signal.SIGKILL) if ending == "dead" else engine.communicate(timeout=20)
        engine.wait()
    if ending == "abandoned":
        Ledger.create(memory, toy_limits(engine="held")).close()
    assert record(path, target).recording.status == ending
    with Reader.open(target) as reader:
        assert reader.sample().status_then.value == ending


def test_a_virtual_ledger_has_no_heartbeat_and_stands_at_its_last_publication(rig: Rig, target: Path) -> None:
    rig.clock.advance(5_000_000_000)
    rig.toy.step()
    recording = record(rig.reader, target).recording
    assert recording.heartbeat_age_seconds is None
    assert recording.now_ns == rig.ledger.clock.now_ns()


# -- under a writer that goes on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [*MOVING, "stats", "slot.preemptions", "ring.events", "ring.peaks", "slot.state"])
def test_publications_between_any_two_reads_make_no_suspect_and_no_damage(rig: Rig, section: str, target: Path) -> None:
    for _ in range(30):
        rig.toy.step()
    rig.source.before[section] = lambda: rig.toy.step(4)
    for _ in range(6):
        saved = record(rig.reader, target, force=True)
        with Reader.open(target) as reader:
            sample, audit = reader.sample(), reader.audit()
            assert suspects(audit) == []
            assert audit.damage == []
            assert (
                int(np.count_nonzero(audit.column("changed_seq") > audit.published_seq))
                == saved.recording.blocks_in_motion
            )
            moving = column(reader, "slot.changed_seq") > saved.published_seq
            assert saved.recording.requests_in_motion == np.count_nonzero(moving)
            assert sample.left_out == np.count_nonzero(moving & (column(reader, "slot.serial") != 0))
            assert counts(sample, audit) == {}
            events = reader.events(0).records
            assert (np.diff(events["seq"].astype(np.int64)) >= 0).all()
            assert (events["serial"] > 0).all()


@pytest.mark.parametrize("section", SECTIONS)
def test_a_publication_left_open_between_any_two_reads_makes_no_suspect(rig: Rig, section: str, target: Path) -> None:
    for number in range(6):
        rig.toy.step()
        opened = [False]

        def begin(opened: list[bool] = opened) -> None:
            if not opened[0]:
                opened[0] = True
                rig.ledger.begin()
                rig.toy.operate(4)

        rig.source.before[section] = begin
        record(rig.reader, target, force=True)
        rig.source.before.clear()
        with Reader.open(target) as reader:
            assert suspects(reader.audit()) == [], number
        if opened[0]:
            rig.toy.count()
            rig.ledger.end()


def test_a_leak_beside_a_moving_writer_is_in_the_recording(rig: Rig, target: Path) -> None:
    slot = rig.publish(lambda: rig.toy.admit(2))
    rig.toy.live.remove(slot)
    leaked = rig.toy.table(slot)[0]
    rig.publish(lambda: rig.toy.stamp(leaked), lambda: rig.ledger.blocks.ref_count.__setitem__(leaked, 2))
    rig.source.before["block.ref_count"] = lambda: rig.toy.step(4)
    record(rig.reader, target)
    with Reader.open(target) as reader:
        assert {(s.kind, s.block) for s in suspects(reader.audit())} == {(FindingKind.EXCESS_REFERENCE, leaked)}


def test_a_request_that_ends_while_its_table_is_copied_is_left_out_and_counted(rig: Rig, target: Path) -> None:
    for _ in range(10):
        rig.publish(lambda: rig.toy.admit(2))
    rig.source.before["arena.chunk"] = lambda: rig.publish(lambda: rig.toy.finish(rig.toy.live[0]))
    saved = record(rig.reader, target)
    with Reader.open(target) as reader:
        sample, found = reader.sample(), suspects(reader.audit())
    assert saved.recording.requests_in_motion == sample.left_out == 1
    assert saved.recording.blocks_in_motion == 2
    assert len(sample.slots) == 7, "of 10 requests one ended in each of 3 rounds, the last of them in motion"
    assert found == []


@pytest.mark.parametrize(("tries", "in_motion"), [(1, 1), (2, 0)])
def test_a_request_that_ends_while_the_slots_are_copied_is_in_motion_unless_they_can_be_copied_again(
    rig: Rig, target: Path, monkeypatch: pytest.MonkeyPatch, tries: int, in_motion: int
) -> None:
    """Its row is gone, but the gauges of the recording's publication may still count it."""
    monkeypatch.setattr("kvledger.image.ROUNDS", 1)
    monkeypatch.setattr("kvledger.image.TRIES", tries)
    ending = [rig.publish(lambda: rig.toy.admit(2))]

    def end_it() -> None:
        if ending:
            slot = ending.pop()
            rig.publish(lambda: rig.toy.finish(slot))

    rig.source.before["slot.serial"] = end_it
    assert record(rig.reader, target).recording.requests_in_motion == in_motion
    with Reader.open(target) as reader:
        assert len(reader.sample().slots) == 0


def test_a_pin_that_changes_while_it_is_copied_is_left_out_and_never_mixed(rig: Rig, target: Path) -> None:
    table = rig.toy.table(rig.publish(lambda: rig.toy.admit(2)))
    leases = {table[0]: 1_000_000_000, table[1]: 2_000_000_000}
    held = [table[0], rig.publish(lambda: rig.toy.pin(table[0], lease_ns=leases[table[0]]))]

    def swap() -> None:
        block, entry = table[1 - table.index(held[0])], held[1]
        again = rig.publish(lambda: rig.toy.unpin(entry), lambda: rig.toy.pin(block, lease_ns=leases[block]))
        assert again == entry, "not the same entry"
        held[0] = block

    for section in ("pin.kind", "pin.lease_ns"):
        rig.source.before = {section: swap}
        record(rig.reader, target, force=True)
        with Reader.open(target) as reader:
            assert len(reader.sample().pins) == 0
    rig.source.before = {"pin.block": lambda: None}
    record(rig.reader, target, force=True)
    with Reader.open(target) as reader:
        pins = reader.sample().pins
        assert list(zip(pins.block.tolist(), pins.lease_ns.tolist(), strict=True)) == [(held[0], leases[held[0]])]


def test_a_request_that_ended_in_the_first_round_only_is_in_motion_no_more(rig: Rig, target: Path) -> None:
    for _ in range(3):
        rig.publish(lambda: rig.toy.admit(2))

    def end_once() -> None:
        if len(rig.toy.live) == 3:
            rig.publish(lambda: rig.toy.finish(0))

    rig.source.before["arena.chunk"] = end_once
    recording = record(rig.reader, target).recording
    assert (recording.blocks_in_motion, recording.requests_in_motion) == (0, 0)
    with Reader.open(target) as reader:
        assert len(reader.sample().slots) == 2


@pytest.mark.slow
@needs_tmpfs
def test_dozens_of_recordings_of_a_busy_writer_show_no_suspect(memory: Path, spawn: Spawn, target: Path) -> None:
    spawn("busy", memory, 2, 512, 0)
    moving = 0
    for number in range(40):
        saved = record(only(memory), target, force=True)
        with Reader.open(target) as reader:
            audit = reader.audit()
            assert suspects(audit) == [], number
            assert audit.damage == []
            assert counts(reader.sample(), audit) == {}
        moving += saved.recording.blocks_in_motion
    assert moving > 0, "no block ever changed while it was copied: the order was not put to the test"


# -- of a whole engine ------------------------------------------------------------------------------------------------


def _check_counts(sample: Sample, audit: Audit) -> None:
    """What must add up in any recording of an engine, and the recounts of one in which nothing moved."""
    assert counts(sample, audit) == {}
    stats = sample.stats
    assert sum(stats.tenant_blocks.values()) == stats.gauge("active_blocks")
    recording = sample.head.recording
    assert recording is not None
    if not recording.requests_in_motion and sample.published_seq == audit.published_seq:
        assert int(sample.slots.table_blocks.sum()) == len(audit.tables.blocks)
        running = int(np.count_nonzero(sample.slots.state == RequestState.RUNNING))
        waiting = int(np.count_nonzero(sample.slots.waiting))
        assert (running, waiting) == (stats.gauge("running"), stats.gauge("waiting"))


@pytest.mark.slow
@needs_tmpfs
@pytest.mark.parametrize("seed", [31, 32])
def test_recordings_of_a_storm_at_random_instants_show_no_suspect_and_add_up(
    memory: Path, spawn: Spawn, target: Path, seed: int
) -> None:
    spawn(str(memory), seed, "none", module="storm")
    draw, moving, sequences = random.Random(seed), 0, set()
    for number in range(30):
        time.sleep(draw.uniform(0, 0.02))
        saved = record(only(memory), target, force=True)
        sequences.add(saved.published_seq)
        moving += saved.recording.blocks_in_motion
        with Reader.open(target) as reader:
            sample, audit = reader.sample(), reader.audit()
            assert suspects(audit) == [], number
            assert audit.damage == []
            _check_counts(sample, audit)
    assert len(sequences) == 30, "the storm stood still"
    assert moving > 0, "no block ever changed while it was copied"


@pytest.mark.slow
@needs_tmpfs
@pytest.mark.parametrize("fault", ["skipped_free", "lost_decref", "free_list_loss"])
def test_recordings_of_a_storm_with_a_fault_show_it_and_nothing_else(
    memory: Path, spawn: Spawn, target: Path, fault: str
) -> None:
    writer = spawn(str(memory), 33, fault, module="storm")
    assert writer.stdout is not None
    struck = int(writer.stdout.readline())
    named: set[int] = set()
    for _ in range(12):
        record(only(memory), target, force=True)
        with Reader.open(target) as reader:
            found = suspects(reader.audit())
        assert {s.kind for s in found} <= promised_findings()[fault]
        named |= {s.block for s in found}
    assert struck in named


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_for_owner_and_group_sparse_and_alone(tmp_path: Path) -> None:
    ledger = Ledger.in_memory(toy_limits(200_000))
    with Reader.over(MemorySource(ledger.image)) as reader:
        saved = record(reader, tmp_path / "r")
    status = (tmp_path / "r").stat()
    assert stat.S_IMODE(status.st_mode) == 0o640
    assert status.st_size == saved.bytes == len(ledger.image)
    assert status.st_blocks * 512 < status.st_size / 2
    assert os.listdir(tmp_path) == ["r"]


def test_what_is_there_already_is_replaced_by_force_if_it_is_a_recording_and_never_otherwise(
    rig: Rig, tmp_path: Path
) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    record(rig.reader, first)
    with pytest.raises(BadTarget, match=f"{first} is there already.*--force"):
        record(rig.reader, first)
    rig.toy.step()
    assert record(rig.reader, first, force=True).published_seq == rig.ledger.seq
    other.write_bytes(bytes(rig.ledger.image))
    with pytest.raises(BadTarget, match=f"{other} is no recording"):
        record(rig.reader, other, force=True)
    (tmp_path / "link").symlink_to(first)
    with pytest.raises(BadTarget, match="is no recording"):
        record(rig.reader, tmp_path / "link", force=True)
    assert other.read_bytes() == bytes(rig.ledger.image)


@needs_tmpfs
def test_a_live_ledger_is_never_written_over(memory: Path, spawn: Spawn, rig: Rig) -> None:
    spawn("hold", memory)
    live = only(memory)
    renamed = memory / "renamed"
    os.link(live, renamed)
    for path in (live, renamed):
        with pytest.raises(BadTarget):
            record(rig.reader, path, force=True)
        with pytest.raises(BadTarget):
            record(live, path, force=True)
    assert probe(live) is ReadStatus.IDLE


def test_a_recording_may_not_have_a_ledgers_name(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(BadTarget, match=r"name the recording toy\.0\.00000009\.kvrecording"):
        record(rig.reader, tmp_path / "toy.0.00000009.kvledger")


def test_a_recording_is_copied_and_not_recorded_again(rig: Rig, tmp_path: Path) -> None:
    record(rig.reader, tmp_path / "first")
    with pytest.raises(BadTarget, match="copy the file"):
        record(tmp_path / "first", tmp_path / "second")


def test_a_directory_that_is_not_there_and_a_ledger_that_is_not_there_are_told_apart(rig: Rig, tmp_path: Path) -> None:
    with pytest.raises(BadTarget, match="there is no directory"):
        record(rig.reader, tmp_path / "nowhere" / "r")
    with pytest.raises(FileNotFoundError):
        record(tmp_path / "no.0.00000001.kvledger", tmp_path / "r")
    (tmp_path / "text").write_bytes(b"not a ledger" * 1000)
    with pytest.raises(NotALedger):
        record(tmp_path / "text", tmp_path / "r")
    assert os.listdir(tmp_path) == ["text"]


@needs_tmpfs
def test_a_disk_without_room_is_a_clear_error_and_nothing_is_left(memory: Path, spawn: Spawn, tmp_path: Path) -> None:
    spawn("hold", memory)
    said = spawn("save", only(memory), tmp_path / "r", 50_000, ready=None).communicate(timeout=20)[0]
    assert said.startswith(f"NoSpace {tmp_path / 'r'}: the recording needs up to ")
    assert os.listdir(tmp_path) == []


@pytest.mark.needs("mount")
def test_a_full_file_system_is_a_clear_error_and_nothing_is_left(tiny_tmpfs: Path, rig: Rig) -> None:
    (tiny_tmpfs / "ballast").write_bytes(bytes((1 << 20) - 65536))
    with pytest.raises(NoSpace, match="are free: save it elsewhere"):
        record(rig.reader, tiny_tmpfs / "r")
    assert os.listdir(tiny_tmpfs) == ["ballast"]


def test_other_trouble_with_the_disk_is_typed_and_leaves_nothing(
    rig: Rig, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(LedgerUnwritable, match="Input/output error"):
        record(rig.reader, target)
    assert os.listdir(target.parent) == []


def test_a_name_taken_meanwhile_is_not_replaced(rig: Rig, target: Path) -> None:
    rig.source.before["block.changed_seq"] = lambda: target.write_text("taken") and None  # type: ignore[assignment]
    with pytest.raises(BadTarget, match="is there already"):
        record(rig.reader, target)
    assert target.read_text() == "taken"
    assert os.listdir(target.parent) == [target.name]


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_anywhere_or_a_cut_is_a_typed_error(rig: Rig, target: Path) -> None:
    for _ in range(20):
        rig.toy.step()
    record(rig.reader, target)
    whole, draw = target.read_bytes(), random.Random(4)
    places = [*range(88), *range(128, 256), *(draw.randrange(4096, len(whole)) for _ in range(150))]
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << draw.randrange(8)
        with pytest.raises(LedgerUnreadable):
            Reader.over(MemorySource(bytes(damaged), writer_lives=False))
    for length in (0, 7, 87, 4000, 4096, 5000, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(20))):
        with pytest.raises(LedgerUnreadable):
            Reader.over(MemorySource(whole[:length], writer_lives=False))


# -- engine starts ----------------------------------------------------------------------------------------------------


def _recorded_as(memory: Path, saved: Callable[[Path], Saved], name: str) -> Path:
    saved(memory / "r")
    path = memory / name
    (memory / "r").rename(path)
    return path


@needs_tmpfs
def test_a_start_neither_inherits_from_a_recording_nor_changes_nor_removes_it(memory: Path, rig: Rig) -> None:
    def save(path: Path) -> Saved:
        rig.publish(lambda: rig.ledger.stats.values.__setitem__(rig.ledger.stats.counter("evictions_total"), 5.0))
        return record(rig.reader, path)

    paths = [_recorded_as(memory, save, f"toy.0.{epoch:08d}.kvledger") for epoch in (3, 4, 7)]
    before = [path.read_bytes() for path in paths]
    for _ in range(2):
        Ledger.create(memory, toy_limits()).close()
    assert [path.read_bytes() for path in paths] == before
    assert [epoch for epoch, _ in epochs(memory, "toy", 0)] == [1, 2]
    with Reader.open(memory / "toy.0.00000002.kvledger") as reader:
        assert reader.sample().stats.counter("evictions_total") == 0.0
    with pytest.raises(LedgerUnwritable, match="is a recording in the place of the new ledger"):
        Ledger.create(memory, toy_limits())
    assert [path.read_bytes() for path in paths] == before


def test_only_a_recording_is_taken_for_one(rig: Rig, tmp_path: Path) -> None:
    record(rig.reader, tmp_path / "r")
    (tmp_path / "ledger").write_bytes(bytes(rig.ledger.image))
    os.mkfifo(tmp_path / "fifo")
    assert is_recording(tmp_path / "r")
    assert not any(is_recording(tmp_path / name) for name in ("ledger", "fifo", "missing", "."))


def test_a_ledger_that_died_within_a_publication_is_recorded_as_it_is(target: Path) -> None:
    ledger = Ledger.in_memory(toy_limits(), clock=VirtualClock())
    toy = Toy(ledger)
    for _ in range(10):
        toy.step()
    ledger.begin()
    toy.operate(3)
    with Reader.over(MemorySource(ledger.image, writer_lives=False)) as dead:
        saved = record(dead, target)
        unstable = int(np.count_nonzero(dead.audit().column("changed_seq") == ledger.seq))
    assert saved.recording.status == "dead"
    assert saved.recording.blocks_in_motion == unstable > 0
    with Reader.open(target) as reader:
        audit = reader.audit()
        assert audit.writing_seq == audit.published_seq + 1 == ledger.control[CONTROL_INDEX["writing_seq"]]
        assert suspects(audit) == []
