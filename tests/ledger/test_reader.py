"""Samples: live requests row by row, waits, retries, and what is served when there is no good look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvledger.buffers import Buffers
from kvledger.clock import VirtualClock
from kvledger.errors import Busy, LedgerUnreadable
from kvledger.layout import CONTROL_INDEX
from kvledger.reader import LOOKS, Reader
from kvledger.source import MemorySource
from kvledger.status import ReadStatus
from kvledger.words import PinKind, RequestState, WaitCause
from kvledger.writer import Ledger
from tests.ledger.toy import Toy, toy_limits

SECOND = 1_000_000_000


class Interfering(MemorySource):
    """A source that lets a writer act just before a read of a given section."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger.image)
        self._layout = ledger.layout
        self.before: dict[str, Callable[[], None]] = {}
        self.reads: list[str] = []

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        for name, section in self._layout.sections.items():
            if section.offset <= offset < section.offset + section.nbytes:
                self.reads.append(name)
                self.before.get(name, lambda: None)()
        super().read_into(offset, target)


class Rig:
    """A toy engine, its clock, and a reader whose reads can be interfered with."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.ledger = Ledger.in_memory(toy_limits(), clock=self.clock)
        self.toy = Toy(self.ledger)
        self.source = Interfering(self.ledger)
        self.reader = Reader.over(self.source)

    def publish(self, *acts: Callable[[], Any]) -> Any:
        """One publication; returns what the last of `acts` did."""
        self.ledger.begin()
        done = [act() for act in acts][-1]
        self.toy.count()
        self.ledger.end()
        return done


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_live_requests_come_with_all_their_columns(rig: Rig) -> None:
    rig.publish(lambda: [rig.toy.admit(2), rig.toy.admit(3), rig.toy.admit(1)])
    rig.publish(lambda: rig.toy.finish(1))
    slots = rig.reader.sample().slots
    assert slots.slot.tolist() == [0, 2]
    assert slots.serial.tolist() == [1, 3]
    assert slots.table_blocks.tolist() == [[2], [1]]
    assert slots.id_head.tolist() == [b"request-1", b"request-3"]
    assert slots.state.tolist() == [RequestState.RUNNING] * 2
    assert slots.settled.all()


def test_a_sample_keeps_its_values_when_the_ledger_goes_on(rig: Rig) -> None:
    rig.publish(lambda: rig.toy.admit(2))
    sample = rig.reader.sample()
    before = sample.slots.serial.copy(), sample.stats.values.copy()
    for _ in range(20):
        rig.toy.step()
        rig.reader.sample()
        rig.reader.audit()
    assert (sample.slots.serial == before[0]).all()
    assert (sample.stats.values == before[1]).all()


def test_a_row_changed_by_an_open_publication_is_served_as_it_was_last_seen_whole(rig: Rig) -> None:
    slot = rig.publish(lambda: rig.toy.admit(2))
    rig.reader.sample()
    rig.ledger.begin()
    rig.toy.grow(slot)
    rig.toy.admit(1)
    sample = rig.reader.sample()
    assert sample.slots.slot.tolist() == [slot]
    assert sample.slots.table_blocks.tolist() == [[2]]
    assert not sample.slots.settled.any()
    assert sample.left_out == 1, "the request of the open publication does not exist yet"
    rig.ledger.end()
    sample = rig.reader.sample()
    assert sample.slots.table_blocks.tolist() == [[3], [1]]
    assert sample.slots.settled.all()
    assert sample.left_out == 0


def test_a_row_that_changes_during_a_look_is_looked_at_again(rig: Rig) -> None:
    slot = rig.publish(lambda: rig.toy.admit(2))
    left = [1]

    def grow_once() -> None:
        if left:
            left.pop()
            rig.publish(lambda: rig.toy.grow(slot))

    rig.source.before["slot.table_blocks"] = grow_once
    sample = rig.reader.sample()
    assert sample.slots.table_blocks.tolist() == [[3]]
    assert sample.slots.settled.all()
    assert rig.reader.retries == 1


def test_a_slot_taken_over_by_another_request_during_a_look_is_never_a_mixture(rig: Rig) -> None:
    first = rig.publish(lambda: rig.toy.admit(2))
    rig.reader.sample()

    def replace() -> None:
        rig.publish(lambda: rig.toy.finish(first), lambda: rig.toy.admit(5))
        first_new = rig.toy.live[-1]
        assert first_new == first

    left = [replace]
    rig.source.before["slot.arrived_ns"] = lambda: left.pop()() if left else None
    slots = rig.reader.sample().slots
    assert list(zip(slots.serial.tolist(), slots.table_blocks.ravel().tolist(), strict=True)) == [(2, 5)]


def test_a_writer_that_moves_on_at_every_look_gives_busy_first_and_the_last_good_sample_later(rig: Rig) -> None:
    def overtake() -> None:
        for _ in range(3):
            rig.ledger.publish_now()

    rig.source.before["stats"] = overtake
    with pytest.raises(Busy, match="sample again"):
        rig.reader.sample()
    assert rig.reader.retries == LOOKS
    rig.source.before.clear()
    good = rig.reader.sample()
    rig.source.before["stats"] = overtake
    again = rig.reader.sample()
    assert again.status is ReadStatus.LAST_GOOD
    assert again.published_seq == good.published_seq
    assert good.status is ReadStatus.IDLE


def test_one_publication_during_the_copy_of_the_stats_costs_no_second_look(rig: Rig) -> None:
    rig.source.before["stats"] = rig.ledger.publish_now
    sample = rig.reader.sample()
    assert rig.reader.retries == 0
    assert sample.published_seq == rig.ledger.seq - 1


def test_a_publication_that_begins_to_fill_the_buffer_during_the_copy_is_noticed(rig: Rig) -> None:
    looks = [0]

    def one_and_a_half() -> None:
        looks[0] += 1
        if looks[0] == 1:
            rig.ledger.publish_now()
            rig.ledger.begin()
            index = int(rig.ledger.control[CONTROL_INDEX["stats_index"]]) + 1
            rig.ledger._published[index & 1] = -1.0

    rig.source.before["stats"] = one_and_a_half
    sample = rig.reader.sample()
    assert rig.reader.retries == 1
    assert (sample.stats.values >= 0).all()


def test_pins_come_with_kind_holder_and_lease(rig: Rig) -> None:
    slot = rig.publish(lambda: rig.toy.admit(2))
    block = rig.toy.table(slot)[1]
    entry = rig.publish(lambda: rig.toy.pin(block, lease_ns=5 * SECOND, kind=PinKind.CONNECTOR))
    pins = rig.reader.sample().pins
    assert (pins.entry.tolist(), pins.block.tolist(), pins.kind.tolist()) == ([entry], [block], [PinKind.CONNECTOR])
    assert not pins.overdue(rig.clock.now_ns() + 5 * SECOND).any()
    assert pins.overdue(rig.clock.now_ns() + 5 * SECOND + 1000).all()


def test_a_pin_taken_back_during_the_look_is_left_out(rig: Rig) -> None:
    slot = rig.publish(lambda: rig.toy.admit(2))
    entry = rig.publish(lambda: rig.toy.pin(rig.toy.table(slot)[0]))
    left = [entry]
    rig.source.before["pin.kind"] = lambda: rig.publish(lambda: rig.toy.unpin(left.pop())) if left else None
    assert len(rig.reader.sample().pins) == 0


# -- waits ------------------------------------------------------------------------------------------------------------


def _waiting(rig: Rig, *, queue: int, state: RequestState = RequestState.WAITING) -> None:
    slot = rig.publish(lambda: rig.toy.admit(0))
    rig.ledger.slots.state[slot], rig.ledger.slots.queue[slot] = state, queue
    rig.ledger.slots.queued_ns[slot] = rig.clock.now_ns()


def test_a_waiting_request_has_the_cause_of_its_queue_and_a_new_one_waits_for_the_step(rig: Rig) -> None:
    stats = rig.ledger.stats
    rig.publish(lambda: rig.toy.admit(1))
    _waiting(rig, queue=0)
    _waiting(rig, queue=255)
    _waiting(rig, queue=0, state=RequestState.PREEMPTED)
    stats.values[stats.gauge("queue_cause")] = WaitCause.POOL
    rig.ledger.publish_now()
    assert rig.reader.sample().wait_causes().tolist() == [-1, WaitCause.POOL, WaitCause.STEP, WaitCause.POOL]


def test_open_waits_go_on_with_the_clock_of_the_queue(rig: Rig) -> None:
    stats, slots = rig.ledger.stats, rig.ledger.slots
    _waiting(rig, queue=0)
    _waiting(rig, queue=255)
    stats.wait_clock[WaitCause.POOL], stats.wait_clock[WaitCause.BATCH_SLOTS] = 10.0, 3.0
    slots.wait_base[0, WaitCause.POOL], slots.wait_base[0, WaitCause.BATCH_SLOTS] = 9.0, 1.0
    slots.wait_seconds[0, WaitCause.STEP] = 0.5
    stats.values[stats.gauge("queue_cause")] = WaitCause.POOL
    stats.values[stats.gauge("queue_since_ns")] = rig.clock.now_ns()
    rig.clock.advance(2 * SECOND)
    rig.ledger.publish_now(idle=False)
    waits = rig.reader.sample().wait_seconds()
    expected = np.zeros((2, len(WaitCause)))
    expected[0, [WaitCause.POOL, WaitCause.BATCH_SLOTS, WaitCause.STEP]] = 3.0, 2.0, 0.5
    expected[1, WaitCause.STEP] = 2.0
    assert waits == pytest.approx(expected)


# -- stats by name ----------------------------------------------------------------------------------------------------


def test_counters_histograms_and_tenants_are_found_by_name(rig: Rig) -> None:
    stats = rig.ledger.stats
    stats.values[stats.counter("cancellations_total", cause="api")] = 4
    stats.tenant_counter("requests_total", finish_reason="length")[rig.ledger.tenant_column("a")] = 2
    stats.tenant_blocks[rig.ledger.tenant_column("a")] = 9
    stats.histogram("allocation").observe_many(np.array([1e-6, 2e-6, 1.0]))
    rig.ledger.publish_now()
    view = rig.reader.sample().stats
    assert view.counter("cancellations_total", cause="api") == 4.0
    assert view.counter("cancellations_total", cause="never") is None
    assert view.tenant_counter("requests_total", finish_reason="length") == {"a": 2.0, "other": 0.0}
    assert view.tenant_blocks == {"a": 9.0, "other": 0.0}
    allocation = view.histogram("allocation")
    assert allocation is not None
    assert allocation.buckets[[0, 1, -1]].tolist() == [1.0, 1.0, 1.0]
    assert allocation.sum == pytest.approx(1.000003)
    assert (allocation.quantile_bound(0.5), allocation.quantile_bound(0.999)) == (2.5e-6, 0.1)
    step = view.histogram("step", phase="model")
    assert step is not None
    assert step.quantile_bound(0.5) is None
    assert len(view.wait_clock) == len(WaitCause)


# -- cost -------------------------------------------------------------------------------------------------------------


def test_a_sample_reads_no_block_array(rig: Rig) -> None:
    rig.publish(lambda: rig.toy.admit(2))
    rig.source.reads.clear()
    rig.reader.sample()
    assert not [
        name for name in rig.source.reads if name.partition(".")[0] in ("block", "arena", "index", "evict", "free")
    ]
    assert len(rig.source.reads) < 100


def test_readers_that_share_buffers_need_no_more_memory_than_one(rig: Rig) -> None:
    buffers = Buffers()
    one = Reader.over(MemorySource(rig.ledger.image), buffers)
    one.sample(), one.audit()
    held = buffers.nbytes
    for _ in range(3):
        other = Reader.over(MemorySource(rig.ledger.image), buffers)
        other.sample(), other.audit()
    assert buffers.nbytes == held
    assert held < rig.ledger.layout.file_bytes


@pytest.mark.parametrize("content", [b"root:x:0:0", b"\0" * 8192], ids=["short", "no magic"])
def test_a_file_that_is_no_ledger_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(content)
    with pytest.raises(LedgerUnreadable, match=str(path)):
        Reader.open(path)
