"""A new engine start takes over what its predecessor counted, whatever became of that one."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvledger.layout import CONTROL_INDEX
from kvledger.limits import Limits
from kvledger.reader import Reader, probe
from kvledger.segment import epochs
from kvledger.snapshot import Sample
from kvledger.source import MemorySource
from kvledger.status import ReadStatus
from kvledger.writer import Ledger
from tests.ledger.toy import toy_limits

pytestmark = [pytest.mark.needs("tmpfs")]


def _count(ledger: Ledger, tenants: dict[str, int]) -> None:
    stats = ledger.stats
    ledger.begin()
    stats.values[stats.counter("evictions_total")] += 5
    stats.histogram("wait", cause="pool", **{"class": "default"}).observe(0.3, 2)
    for name, count in tenants.items():
        stats.tenant_counter("requests_total", finish_reason="stop")[ledger.tenant_column(name)] += count
    ledger.end()


def _sample(ledger: Ledger) -> Sample:
    return Reader.over(MemorySource(ledger.image)).sample()


def test_counters_buckets_tenants_and_serials_go_on_where_they_stopped(memory: Path) -> None:
    with Ledger.create(memory, toy_limits()) as first:
        _count(first, {"a": 1, "b": 2})
        first.control[CONTROL_INDEX["next_serial"]] = 77
    with Ledger.create(memory, toy_limits()) as second:
        sample = _sample(second)
        assert second.epoch == 2
        assert sample.stats.counter("evictions_total") == 5.0
        assert sample.stats.tenant_counter("requests_total", finish_reason="stop") == {"a": 1.0, "b": 2.0, "other": 0.0}
        waits = sample.stats.histogram("wait", cause="pool", **{"class": "default"})
        assert waits is not None
        assert waits.count == 2.0
        assert waits.sum == pytest.approx(0.6)
        assert sample.control["next_serial"] == 77
        assert sample.stats.gauge("free_blocks") == 64.0, "gauges are not inherited"


def test_counters_grow_over_many_starts(memory: Path) -> None:
    for start in range(1, 6):
        with Ledger.create(memory, toy_limits()) as ledger:
            _count(ledger, {"a": 1})
            assert _sample(ledger).stats.counter("evictions_total") == 5.0 * start


def test_tenants_without_a_column_in_the_successor_are_folded_not_lost(memory: Path) -> None:
    with Ledger.create(memory, toy_limits()) as first:
        _count(first, {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5})
    fewer = Limits(engine="toy", capacity_blocks=64, max_requests=12, max_tenants=2)
    with Ledger.create(memory, fewer) as second:
        ended = _sample(second).stats.tenant_counter("requests_total", finish_reason="stop")
    assert ended == {"a": 1.0, "b": 2.0, "other": 12.0}


def test_one_predecessor_is_kept_and_marked(memory: Path) -> None:
    for _ in range(4):
        Ledger.create(memory, toy_limits()).close()
    kept = epochs(memory, "toy", 0)
    assert [epoch for epoch, _ in kept] == [3, 4]
    assert [probe(path) for _, path in kept] == [ReadStatus.ABANDONED, ReadStatus.CLOSED]


def test_another_engines_or_ranks_ledger_is_left_alone(memory: Path) -> None:
    Ledger.create(memory, toy_limits(engine="other")).close()
    Ledger.create(memory, toy_limits()).close()
    Ledger.create(memory, toy_limits()).close()
    assert probe(epochs(memory, "other", 0)[0][1]) is ReadStatus.CLOSED


def test_an_unreadable_predecessor_is_said_so_and_does_not_stop_the_start(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Ledger.create(memory, toy_limits()).close()
    path = epochs(memory, "toy", 0)[0][1]
    path.write_bytes(b"x" * 10_000)
    with caplog.at_level(logging.WARNING), Ledger.create(memory, toy_limits()) as ledger:
        assert _sample(ledger).stats.counter("evictions_total") == 0.0
    assert "inherited=false" in caplog.text
    assert path.name in caplog.text


def test_what_a_predecessor_did_not_know_starts_at_zero(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.create(memory, toy_limits()) as first:
        _count(first, {"a": 1})
    with Ledger.create(memory, toy_limits()) as second:
        plan = second.stats.plan
        del plan.counters["evictions_total", ()]
        second.stats.inherit(first.stats.plan, first.stats.array, {})
        assert second.stats.array[plan.histograms["wait", (("cause", "pool"), ("class", "default"))].index + 7] > 0
