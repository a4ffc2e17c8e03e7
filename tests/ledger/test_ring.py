"""Rings: what a reader may trust, and that it counts what it lost to the record."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvledger.layout import CONTROL_INDEX, CONTROL_SIZE, EVENT, SUMMARY
from kvledger.ring import RingWriter, packer, trusted

SIZE = 8


class Subclass(np.ndarray):
    """Stands for a hooked array: whatever is not a plain one."""


WORDS = st.integers(-(2**63), 2**63 - 1)


def _ring() -> tuple[np.ndarray, np.ndarray, RingWriter]:
    records, control = np.zeros(SIZE, EVENT), np.zeros(CONTROL_SIZE, np.int64)
    return records, control, RingWriter(records, control, "events")


def _append(writer: RingWriter, first: int, count: int) -> None:
    for serial in range(first, first + count):
        writer.append((serial, 0, 0, 0, 0, 0, 0))


@given(st.lists(st.tuples(st.integers(0, 3 * SIZE), st.booleans()), max_size=30))
def test_what_is_read_and_what_is_lost_add_up_to_what_was_written(batches: list[tuple[int, bool]]) -> None:
    records, control, writer = _ring()
    written = read = lost = since = 0
    for count, look in [*batches, (0, True)]:
        _append(writer, written, count)
        written += count
        if look:
            head, reserved = int(control[CONTROL_INDEX["events_head"]]), int(control[CONTROL_INDEX["events_reserved"]])
            window = trusted(records.copy(), since=since, head_before=head, reserved_after=reserved)
            assert window.records["serial"].tolist() == list(range(window.first, window.next))
            read, lost, since = read + len(window.records), lost + window.lost, window.next
    assert (read + lost, since) == (written, written)


def test_records_that_may_have_been_overwritten_during_the_copy_are_not_trusted() -> None:
    records, _, writer = _ring()
    _append(writer, 0, SIZE)
    window = trusted(records, since=0, head_before=SIZE, reserved_after=SIZE + 3)
    assert window.first == 3
    assert window.lost == 3
    assert window.records["serial"].tolist() == [3, 4, 5, 6, 7]


def test_a_reader_of_another_epoch_starts_over() -> None:
    records, _, writer = _ring()
    _append(writer, 0, 3)
    window = trusted(records, since=1000, head_before=3, reserved_after=3)
    assert window.records["serial"].tolist() == [0, 1, 2]


def test_reserved_moves_before_the_records_and_head_after_them() -> None:
    seen: list[tuple[int, int]] = []
    control = np.zeros(CONTROL_SIZE, np.int64)
    reserved, head = CONTROL_INDEX["events_reserved"], CONTROL_INDEX["events_head"]

    class Watched(np.ndarray):
        def __setitem__(self, key: Any, value: Any) -> None:
            seen.append((int(control[reserved]), int(control[head])))
            super().__setitem__(key, value)

    _append(RingWriter(np.zeros(SIZE, EVENT).view(Watched), control, "events"), 0, 2)
    assert seen == [(1, 0), (2, 1)]
    assert int(control[head]) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40)), max_size=20
    )
)
def test_a_record_stored_alone_is_the_same_in_plain_memory_and_in_a_hooked_array(
    rows: list[tuple[int, int, bytes]],
) -> None:
    plain, hooked = np.zeros(SIZE, SUMMARY), np.zeros(SIZE, SUMMARY).view(Subclass)
    waits = np.arange(10.0)
    for ring in (plain, hooked):
        control = np.zeros(CONTROL_SIZE, np.int64)
        writer = RingWriter(ring, control, "summaries")
        for serial, blocks, name in rows:
            record = np.zeros((), SUMMARY)
            record["serial"], record["peak_blocks"], record["id_head"], record["wait_seconds"] = (
                serial,
                blocks,
                name,
                waits,
            )
            writer.append(packer(SUMMARY).unpack(record.tobytes()))
            at = (int(control[CONTROL_INDEX["summaries_head"]]) - 1) % SIZE
            assert np.asarray(ring)[at] == record
    assert plain.tobytes() == np.asarray(hooked).tobytes()


@given(WORDS, WORDS, WORDS)
def test_damaged_positions_give_a_bounded_window(since: int, head: int, reserved: int) -> None:
    window = trusted(np.zeros(SIZE, EVENT), since=since, head_before=head, reserved_after=reserved)
    assert len(window.records) <= SIZE
    assert window.lost >= 0
    assert window.first >= 0
