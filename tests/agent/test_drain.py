"""Rings are drained into a bounded history, and what was overwritten unread is counted exactly."""

from __future__ import annotations

from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.words import Event
from kvledger.writer import Ledger
from kvledger_agent.drain import Drain
from tests.ledger.toy import toy_limits

RING = 64


def ring() -> tuple[Ledger, Reader]:
    ledger = Ledger.in_memory(toy_limits())
    return ledger, Reader.over(MemorySource(ledger.image))


def write(ledger: Ledger, count: int) -> None:
    ledger.begin()
    for serial in range(1, count + 1):
        ledger.event(Event.ARRIVED, serial)
    ledger.end()


def test_what_was_overwritten_before_the_first_look_is_not_counted_as_lost() -> None:
    ledger, reader = ring()
    write(ledger, 3 * RING)
    drain = Drain(reader.events)

    assert drain.pull() == RING
    assert drain.lost == 0


def test_every_record_overwritten_between_two_looks_is_counted() -> None:
    ledger, reader = ring()
    drain = Drain(reader.events)
    drain.pull()
    for count in (RING, RING + 7, 3, 5 * RING):
        write(ledger, count)
        drain.pull()

    records = drain.records()

    assert drain.lost == 7 + 4 * RING
    assert records is not None
    assert len(records) == RING + RING + 3 + RING


def test_the_history_is_bounded_and_keeps_the_newest() -> None:
    ledger, reader = ring()
    drain = Drain(reader.events, kept=100)
    for _ in range(50):
        write(ledger, 10)
        drain.pull()

    records = drain.records()

    assert records is not None
    assert 100 <= len(records) < 100 + RING
    assert int(records["seq"][-1]) == ledger.seq


def test_an_empty_ring_has_no_records() -> None:
    _, reader = ring()
    drain = Drain(reader.events)

    assert (drain.pull(), drain.records(), drain.lost) == (0, None, 0)
