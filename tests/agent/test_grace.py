"""Time that counts: publications and idleness do, hangs do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvledger.snapshot import Sample
from kvledger.status import ReadStatus
from kvledger_agent.grace import GraceClock, grace_of
from tests.agent.rig import NS, ToyWatch


@pytest.fixture(name="sample")
def a_sample() -> Sample:
    return ToyWatch().source.reader.sample()


def at(sample: Sample, seq: int, published: float, now: float, status: ReadStatus = ReadStatus.OK) -> Sample:
    return replace(sample, published_seq=seq, clock_ns=int(published * NS), now_ns=int(now * NS), status=status)


def test_publications_count_by_the_ledgers_own_clock(sample: Sample) -> None:
    clock = GraceClock()
    for seq in range(5):
        clock.tick(at(sample, seq, 10 + 2 * seq, 10 + 2 * seq))

    assert (clock.elapsed_ns, clock.samples) == (8 * NS, 5)


def test_a_hang_adds_nothing_however_long_it_is_watched(sample: Sample) -> None:
    clock = GraceClock()
    clock.tick(at(sample, 1, 10, 10))
    for second in range(1, 100):
        status = ReadStatus.FROZEN if second > 3 else ReadStatus.OK
        clock.tick(at(sample, 1, 10, 10 + second, status))

    assert (clock.elapsed_ns, clock.samples) == (0, 1)


def test_the_time_of_a_hang_does_not_count_when_the_engine_goes_on(sample: Sample) -> None:
    clock = GraceClock()
    clock.tick(at(sample, 1, 10, 10))
    clock.tick(at(sample, 1, 10, 40, ReadStatus.FROZEN))
    clock.tick(at(sample, 2, 41, 41))
    clock.tick(at(sample, 3, 42, 42))

    assert (clock.elapsed_ns, clock.samples) == (1 * NS, 3)


def test_an_idle_engine_is_counted_by_the_monotonic_clock(sample: Sample) -> None:
    clock = GraceClock()
    clock.tick(at(sample, 1, 10, 10))
    for second in range(1, 5):
        clock.tick(at(sample, 1, 10, 10 + second, ReadStatus.IDLE))
    clock.tick(at(sample, 2, 14.5, 15))

    assert (clock.elapsed_ns, clock.samples) == (int(4.5 * NS), 6)


def test_the_grace_is_two_seconds_or_twenty_slow_steps() -> None:
    watch = ToyWatch()
    assert grace_of(watch.source.reader.sample()).seconds == 2.0

    watch.ledger.begin()
    watch.ledger.stats.histogram("step", phase="model").observe(0.4)
    watch.ledger.end()

    assert grace_of(watch.source.reader.sample()).seconds == 20 * 0.5
