"""Publications: what becomes visible, in which order, and what the writer keeps on the side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.layout import CONTROL_INDEX, SUMMARY
from kvledger.limits import Limits
from kvledger.reader import Reader, probe
from kvledger.ring import packer
from kvledger.source import MemorySource
from kvledger.status import ReadStatus
from kvledger.words import Event
from kvledger.writer import Ledger
from tests.ledger.toy import toy_limits

SECOND = 1_000_000_000


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def ledger(clock: VirtualClock) -> Ledger:
    return Ledger.in_memory(toy_limits(), clock=clock)


@pytest.fixture
def reader(ledger: Ledger) -> Reader:
    return Reader.over(MemorySource(ledger.image))


def _word(ledger: Ledger, name: str) -> int:
    return int(ledger.control[CONTROL_INDEX[name]])


def test_a_new_ledger_is_published_empty_and_idle(reader: Reader) -> None:
    sample = reader.sample()
    assert sample.published_seq == 1
    assert sample.status is ReadStatus.IDLE
    assert [sample.stats.gauge(f"{w}_blocks") for w in ("free", "cached", "active")] == [64.0, 0.0, 0.0]
    assert len(sample.slots) == len(sample.pins) == 0
    assert reader.audit().free.tolist() == list(range(63, -1, -1))


def test_numbers_rise_by_one_and_are_seen_only_at_the_end(ledger: Ledger, reader: Reader) -> None:
    steps = ledger.stats.counter("engine_steps_total")
    assert ledger.begin() == 2
    ledger.stats.values[steps] += 1
    assert _word(ledger, "writing_seq") == 2
    assert reader.sample().published_seq == 1
    assert reader.sample().stats.counter("engine_steps_total") == 0.0
    assert not reader.audit().quiescent
    ledger.end()
    assert reader.sample().published_seq == 2
    assert reader.sample().stats.counter("engine_steps_total") == 1.0
    assert reader.audit().quiescent


def test_stats_go_into_the_buffer_that_nobody_reads(memory: Path) -> None:
    order: list[str] = []
    watched: list[Ledger] = []

    def hook() -> None:
        if watched:
            index = _word(watched[0], "stats_index")
            order.append(f"index {index}, published {_word(watched[0], 'published_seq')}")

    with Ledger.create(memory, toy_limits(), clock=VirtualClock(), hook=hook) as ledger:
        watched.append(ledger)
        before = ledger._published[_word(ledger, "stats_index") & 1].copy()
        ledger.begin()
        ledger.stats.values[ledger.stats.counter("engine_steps_total")] = 7
        ledger.end()
        watched.clear()
        index = _word(ledger, "stats_index")
        assert (ledger._published[~index & 1] == before).all(), "the buffer readers were looking at was touched"
        # writing_seq, peak or idle, buffer, stats_index, published_seq: each seen by the store after it.
        assert order[-3:] == ["index 1, published 1", "index 1, published 1", "index 2, published 1"], order


def test_idle_since_is_when_work_ran_out_and_zero_while_there_is_some(ledger: Ledger, clock: VirtualClock) -> None:
    ledger.publish_now(idle=False)
    assert _word(ledger, "idle_since_ns") == 0
    clock.advance(SECOND)
    ledger.publish_now()
    began = clock.now_ns()
    clock.advance(SECOND)
    ledger.publish_now()
    assert _word(ledger, "idle_since_ns") == began


@given(st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 60), st.integers(0, 4)), min_size=1, max_size=60))
def test_peaks_hold_the_most_of_every_second(steps: list[tuple[int, int, int]]) -> None:
    clock = VirtualClock()
    ledger = Ledger.in_memory(toy_limits(), clock=clock)
    expected = {1: (0, 0)}
    for delta, active, cached in steps:
        clock.advance(delta)
        ledger.stats.values[ledger.stats.gauge("active_blocks")] = active
        ledger.stats.values[ledger.stats.gauge("cached_blocks")] = cached
        ledger.publish_now(idle=False)
        second = clock.now_ns() // SECOND
        peak = expected.get(second, (0, 0))
        expected[second] = max(peak[0], active), max(peak[1], active + cached)
    # The ring holds 8 seconds; an older one stays only where no newer one took its place.
    newest = {second % 8: second for second in sorted(expected)}
    found = {
        int(p["second"]): (int(p["active_blocks"]), int(p["used_blocks"]))
        for p in Reader.over(MemorySource(ledger.image)).peaks()
    }
    assert found == {second: expected[second] for second in newest.values()}


def test_block_seconds_are_the_integral_of_a_tenants_blocks(
    ledger: Ledger, clock: VirtualClock, reader: Reader
) -> None:
    column = ledger.tenant_column("acme")
    ledger.begin()
    ledger.charge_column(column, 4)
    ledger.end()
    clock.advance(2 * SECOND)
    ledger.begin()
    ledger.charge_column(column, -3)
    clock.advance(SECOND)
    ledger.end()
    used = reader.sample().stats.tenant_counter("block_seconds_total")
    assert used == {"acme": 9.0, "other": 0.0}


def test_events_carry_the_publication_and_its_time(ledger: Ledger, clock: VirtualClock, reader: Reader) -> None:
    clock.advance(SECOND)
    ledger.begin()
    ledger.event(Event.ADMITTED, 5, blocks=3)
    ledger.event(Event.FINISHED, 6, blocks=1)
    ledger.event(Event.FINISHED, 7, blocks=2, detail=1)
    ledger.end()
    window = reader.events(0)
    assert window.records["serial"].tolist() == [5, 6, 7]
    assert window.records["seq"].tolist() == [2, 2, 2]
    assert set(window.records["time_ns"].tolist()) == {clock.now_ns()}
    assert window.records["blocks"].tolist() == [3, 1, 2]
    assert window.records["detail"].tolist() == [0, 0, 1]
    assert (window.next, window.lost) == (3, 0)


def test_a_burst_larger_than_the_ring_keeps_its_end_and_counts_the_rest(ledger: Ledger, reader: Reader) -> None:
    ledger.begin()
    for serial in range(1, 101):
        ledger.event(Event.ARRIVED, serial)
    ledger.end()
    window = reader.events(0)
    assert window.records["serial"].tolist() == list(range(37, 101))
    assert window.lost == 36


def test_summaries_come_back_whole(ledger: Ledger, reader: Reader) -> None:
    records = np.zeros(3, SUMMARY)
    records["serial"], records["block_seconds"], records["id_head"] = [1, 2, 3], 1.5, b"abc"
    records["wait_seconds"][:, 2] = 0.25
    ledger.begin()
    for record in records:
        ledger.summary(packer(SUMMARY).unpack(record.tobytes()))
    ledger.end()
    assert (reader.summaries(0).records == records).all()
    assert len(reader.summaries(3).records) == 0


def test_tenants_get_columns_in_order_and_the_rest_are_folded_into_other(ledger: Ledger, reader: Reader) -> None:
    columns = [ledger.tenant_column(name) for name in ("a", "b", "a", "c", "d", "e", "f", "other", "e")]
    assert columns == [0, 1, 0, 2, 3, 4, 4, 4, 4]
    assert reader.sample().tenants == ("a", "b", "c", "d", "other")


def test_a_tenants_quota_is_read_by_name(ledger: Ledger, reader: Reader) -> None:
    ledger.tenants.quota_blocks[ledger.tenant_column("a")] = 20
    ledger.tenant_column("b")
    assert reader.sample().tenant_quota_blocks == {"a": 20}


def test_overflows_are_counted(ledger: Ledger, reader: Reader) -> None:
    ledger.overflow()
    ledger.overflow(4)
    assert reader.sample().control["overflows"] == 5


@pytest.mark.needs("tmpfs")
def test_an_end_by_an_exception_or_one_that_nobody_asked_for_is_not_a_clean_stop(memory: Path) -> None:
    with pytest.raises(ZeroDivisionError), Ledger.create(memory, toy_limits()):
        raise ZeroDivisionError
    (path,) = memory.glob("toy.*.kvledger")
    assert probe(path) is ReadStatus.DEAD
    Ledger.create(memory, toy_limits(engine="other")).close(clean=False)
    (other,) = memory.glob("other.*.kvledger")
    assert probe(other) is ReadStatus.DEAD


@pytest.mark.needs("tmpfs")
def test_a_clean_stop_leaves_a_closed_file_with_the_last_counts(memory: Path) -> None:
    ledger = Ledger.create(memory, toy_limits())
    path = ledger.path
    assert path is not None
    ledger.begin()
    ledger.stats.values[ledger.stats.counter("engine_steps_total")] += 3
    ledger.end()
    ledger.close()
    ledger.close()
    with Reader.open(path) as reader:
        sample = reader.sample()
    assert sample.status is ReadStatus.CLOSED
    assert sample.stats.counter("engine_steps_total") == 3.0
    assert sample.writer_pid is None


def test_every_store_of_a_publication_is_seen_by_a_drills_hook(memory: Path) -> None:
    stores = [0]

    def hook() -> None:
        stores[0] += 1

    with Ledger.create(memory, toy_limits(), hook=hook) as ledger:
        before = stores[0]
        ledger.begin()
        ledger.stamp(np.array([1, 2], np.int32))
        ledger.blocks.ref_count[1] = 1
        ledger.slots.wait_base[0, 3] = 1.0
        ledger.end()
        assert stores[0] - before >= 7


def test_a_small_ledger_holds_the_largest_number_of_tenants() -> None:
    ledger = Ledger.in_memory(Limits(engine="e", capacity_blocks=4, max_requests=1))
    assert [ledger.tenant_column(f"t{i}") for i in range(70)] == [*range(64), *[64] * 6]
