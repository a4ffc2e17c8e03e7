"""The reader written from the format note alone reads what ours reads, of recordings and of living ledgers."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvledger.invariants import suspects
from kvledger.layout import EVENT, PEAK, SUMMARY
from kvledger.reader import Reader
from kvledger.record import record
from kvledger.snapshot import Sample
from kvledger.views import Blocks, SlotColumns, section_names
from kvledger.words import FindingKind, WaitCause
from tests.children import Spawn
from tests.ledger import format_note
from tests.ledger.second_reader import SecondReader, Unreadable

pytestmark = [pytest.mark.needs("tmpfs")]
RECORDS = {"events": EVENT, "summaries": SUMMARY}


def only(directory: Path) -> Path:
    return next(directory.glob("*.kvledger"))


def same(ours: Any, theirs: Any) -> bool:
    """Equal, whatever the types: numpy's strings have lost their trailing NULs, sub-arrays are lists."""
    if isinstance(ours, bytes):
        return ours == bytes(theirs).rstrip(b"\0")
    return bool(np.array_equal(np.asarray(ours), np.asarray(theirs)))


def compare_stats(sample: Sample, theirs: dict[str, Any]) -> None:
    stats, plan = sample.stats, sample.stats.plan
    assert {name: stats.gauge(name) for name in plan.gauges} == theirs["gauges"]
    assert len(plan.counters) + len(plan.tenant_counters) == len(theirs["counters"]) > 20
    for name, labels in plan.counters:
        assert stats.counter(name, **dict(labels)) == theirs["counters"][name, tuple(sorted(labels))], name
    for name, labels in plan.tenant_counters:
        assert stats.tenant_counter(name, **dict(labels)) == theirs["counters"][name, tuple(sorted(labels))], name
    assert len(plan.histograms) == len(theirs["histograms"]) > 20
    for name, labels in plan.histograms:
        mine, other = stats.histogram(name, **dict(labels)), theirs["histograms"][name, tuple(sorted(labels))]
        assert mine is not None
        assert (mine.bounds, mine.buckets.tolist(), mine.sum) == (
            tuple(other["bounds"]),
            other["buckets"],
            other["sum"],
        ), name
    assert stats.wait_clock.tolist() == list(theirs["wait_clock"].values())
    assert dict(stats.tenant_blocks) == theirs["tenant_blocks"]
    assert sample.tenants == tuple(theirs["tenant_blocks"])
    assert sample.tenant_quota_blocks == theirs["tenant_quota_blocks"]


def compare_requests(sample: Sample, theirs: dict[str, Any], reader: SecondReader) -> None:
    assert sample.left_out == theirs["left_out"]
    assert sample.slots.slot.tolist() == [row["slot"] for row in theirs["slots"]]
    for name in (n.removeprefix("slot.") for n in section_names(SlotColumns)):
        mine = getattr(sample.slots, name)
        assert all(same(a, row[name]) for a, row in zip(mine.tolist(), theirs["slots"], strict=True)), name
    for name in ("entry", "block", "kind", "holder", "since_ns", "lease_ns"):
        assert getattr(sample.pins, name).tolist() == [pin[name] for pin in theirs["pins"]], name
    waits = reader.wait_seconds(theirs, sample.now_ns)
    assert sample.wait_seconds() == pytest.approx(
        np.array([[row[cause] for cause in WaitCause.words()] for row in waits]).reshape(-1, len(WaitCause))
    )


def compare_recording(path: Path) -> dict[str, int]:
    """Everything two readers can read of one recording is equal; how much there was of it."""
    with Reader.open(path) as mine, SecondReader(path) as second:
        sample, theirs = mine.sample(), second.sample()
        compare_stats(sample, theirs)
        compare_requests(sample, theirs, second)
        assert mine.head.recording is not None
        assert second.recorded is not None
        for name, value in second.recorded.items():
            assert getattr(mine.head.recording, name) == value, name
        assert (second.epoch, second.boot_id, second.pid) == (mine.head.epoch, mine.head.boot_id, mine.head.pid)
        assert sample.control == second.words()
        audit, judged = mine.audit(), second.audit()
        for name in section_names(Blocks):
            assert audit.column(name.removeprefix("block.")).tolist() == second.column(name), name
        groups, offsets = audit.tables.groups, audit.tables.offsets.tolist()
        for row, slot in enumerate(audit.slots.slot.tolist()):
            for group in range(groups):
                table = row * groups + group
                entries = audit.tables.blocks[offsets[table] : offsets[table + 1]].tolist()
                assert entries == judged["tables"][slot, group], (slot, group)
        assert audit.free.tolist() == judged["free"]
        assert audit.stable.tolist() == judged["stable"]
        found = {s.block: s.excess for s in suspects(audit) if s.kind is FindingKind.EXCESS_REFERENCE}
        assert found == {b: off for b, off in judged["wrong_references"].items() if off > 0}
        sizes = {"slots": len(sample.slots), "pins": len(sample.pins), "lost": 0}
        for ring, dtype in RECORDS.items():
            for since in (0, sample.control[f"{ring}_head"] // 2, -1, 1 << 40):
                window, (records, lost) = getattr(mine, ring)(since), second.ring(ring, since)
                assert (len(window.records), window.lost) == (len(records), lost)
                for name in dtype.names or ():
                    if name != "pad":
                        mine_of = window.records[name].tolist()
                        assert all(same(a, r[name]) for a, r in zip(mine_of, records, strict=True)), (ring, name)
                sizes["lost"] += lost
        peaks = mine.peaks()
        assert [tuple(p) for p in peaks.tolist()] == [tuple(p[n] for n in PEAK.names or ()) for p in second.peaks()]
        return sizes | {"peaks": len(peaks), "moving": audit.stable.tolist().count(False)}


@pytest.mark.slow
def test_both_readers_agree_on_recordings_of_a_storming_engine(memory: Path, spawn: Spawn, tmp_path: Path) -> None:
    spawn(str(memory), 11, "none", module="storm")
    seen = []
    for number in range(8):
        record(only(memory), tmp_path / f"{number}")
        seen.append(compare_recording(tmp_path / f"{number}"))
    assert min(size["slots"] + size["peaks"] for size in seen) > 0
    with SecondReader(tmp_path / "7") as second:
        counters = second.sample()["counters"]
        totals = {
            name: sum(sum(v.values()) if isinstance(v, dict) else v for (n, _), v in counters.items() if n == name)
            for name in ("preemptions_total", "cancellations_total", "requests_total", "cow_copies_total")
        }
    assert min(totals.values()) > 0, f"the storm was too tame: {totals}"


@pytest.mark.slow
def test_both_readers_agree_on_recordings_of_a_ledger_with_pins_and_full_rings(
    memory: Path, spawn: Spawn, tmp_path: Path
) -> None:
    spawn("busy", memory, 5, 128, 40)
    seen = []
    for number in range(12):
        record(only(memory), tmp_path / f"{number}")
        seen.append(compare_recording(tmp_path / f"{number}"))
    for what in ("pins", "lost", "moving", "slots"):
        assert sum(size[what] for size in seen) > 0, what


@pytest.mark.slow
def test_the_second_reader_follows_a_living_ledger_and_finds_no_fault_in_it(memory: Path, spawn: Spawn) -> None:
    writer = spawn(str(memory), 12, "none", module="storm")
    assert writer.stdin is not None
    events: list[dict[str, Any]] = []
    lost = audits = 0
    with SecondReader(only(memory)) as second:
        for _ in range(25):
            assert second.status() in ("ok", "idle")
            gauges = second.sample()["gauges"]
            assert gauges["free_blocks"] + gauges["cached_blocks"] + gauges["active_blocks"] == 200
            judged = second.audit()
            assert judged["wrong_references"] == judged["wrong_places"] == {}
            audits += sum(judged["stable"])
            records, missed = second.ring("events", len(events) + lost)
            events += records
            lost += missed
        writer.stdin.close()
        writer.wait()
        assert second.status() == "closed"
        records, missed = second.ring("events", len(events) + lost)
        assert len(events) + len(records) + lost + missed == second.words()["events_head"]
        mine = Reader.open(only(memory))
        compare_stats(mine.sample(), second.sample())
        mine.close()
    sequence = [event["seq"] for event in events + records]
    assert sequence == sorted(sequence)
    assert audits > 25 * 50, "hardly a block stood still"


def test_the_second_reader_tells_idle_dead_closed_and_abandoned(memory: Path, spawn: Spawn) -> None:
    first = spawn("hold", memory)
    path = only(memory)
    with SecondReader(path) as second:
        assert second.status() == "idle"
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert second.status() == "dead"
        successor = spawn("hold", memory)
        assert second.status() == "abandoned"
        (newest,) = set(memory.glob("*.kvledger")) - {path}
        successor.communicate(timeout=20)
        with SecondReader(newest) as closed:
            assert closed.status() == "closed"


def test_the_second_reader_reads_the_worked_example(tmp_path: Path) -> None:
    path = tmp_path / "example"
    path.write_bytes(format_note.example_ledger())
    with SecondReader(path) as second:
        sample, judged = second.sample(), second.audit()
        assert (second.limits["engine"], second.virtual, second.pid) == ("tiny", True, 4242)
        assert [(row["serial"], row["state"]) for row in sample["slots"]] == [(1, 2)]
        assert judged["tables"] == {(0, 0): [0, 1, 2]}
        assert judged["free"] == [7, 6, 5, 4, 3]
        assert [(pin["block"], pin["kind"], pin["lease_ns"]) for pin in sample["pins"]] == [(0, 2, 5_000_000_000)]
        assert list(sample["tenant_blocks"]) == ["acme", "other"]
        assert [(e["event"], e["blocks"], e["seq"]) for e in second.ring("events", 0)[0]] == [(2, 3, 2)]
        assert second.status() == "dead"


def test_the_second_reader_refuses_what_is_cut_or_damaged(memory: Path, spawn: Spawn, tmp_path: Path) -> None:
    spawn("hold", memory)
    path, draw = tmp_path / "r", random.Random(3)
    record(only(memory), path)
    whole = path.read_bytes()
    lengths = [0, 50, 87, 88, 4095, 4096, 5000, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(30))]
    for length in lengths:
        path.write_bytes(whole[:length])
        with pytest.raises(Unreadable):
            SecondReader(path)
    for place in (*range(0, 88, 5), *range(128, 256, 5), *(draw.randrange(4096, len(whole)) for _ in range(30))):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(Unreadable):
            SecondReader(path)


def test_a_ledger_that_is_cut_while_it_is_read_is_unreadable_not_a_crash(
    memory: Path, spawn: Spawn, tmp_path: Path
) -> None:
    spawn("hold", memory)
    copy = tmp_path / "copy"
    shutil.copy(only(memory), copy)
    with SecondReader(copy) as second:
        second.audit()
        with copy.open("r+b") as file:
            file.truncate(second.sections["block.owner"].offset)
        with pytest.raises(Unreadable, match="cut short"):
            second.audit()
