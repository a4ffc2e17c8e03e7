"""Writers killed at a store of their own choosing: seen dead, nothing torn, nothing that was counted goes back."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from kvledger.invariants import counts, suspects
from kvledger.reader import Reader, probe
from kvledger.segment import epochs
from kvledger.snapshot import Sample
from kvledger.source import MemorySource
from kvledger.status import ReadStatus
from kvledger.writer import Ledger
from tests.children import Spawn
from tests.ledger.toy import toy_limits

pytestmark = [pytest.mark.needs("tmpfs")]


def _counters(sample: Sample) -> tuple[float, float, float]:
    steps, ended = (
        sample.stats.counter("engine_steps_total"),
        sample.stats.tenant_counter("requests_total", finish_reason="stop"),
    )
    waits = sample.stats.histogram("step", phase="model")
    assert steps is not None
    assert ended is not None
    assert waits is not None
    return steps, ended.get("acme", 0.0), waits.count


def _drill(memory: Path, spawn: Spawn, *, kills: int, seed: int) -> tuple[int, int]:
    """`kills` deaths and restarts over one directory: (how many lay inside a publication, steps counted in all)."""
    rng, before, inside = random.Random(seed), (0.0, 0.0, 0.0), 0
    for number in range(kills):
        child = spawn("crash", memory, number, rng.randint(1, 3000))
        assert child.wait(30) == -signal.SIGKILL
        path = epochs(memory, "crash", 0)[-1][1]
        assert probe(path) is ReadStatus.DEAD, f"kill {number}: {probe(path)}"
        with Reader.open(path) as reader:
            sample, audit = reader.sample(), reader.audit()
            assert sample.writer_pid is None
            steps, ended, waits = now = _counters(sample)
            assert steps == ended == waits, f"kill {number}: torn, {now}"
            assert all(a >= b for a, b in zip(now, before, strict=True)), f"kill {number}: {before} went back to {now}"
            assert counts(sample) == {}
            found = suspects(audit)
            assert found == [], f"kill {number}, {audit.writing_seq} of {audit.published_seq}: {found}"
            assert audit.damage == []
            inside += audit.writing_seq != audit.published_seq
            before = now
    assert len(epochs(memory, "crash", 0)) == min(kills, 2), "one predecessor is kept"
    return inside, int(before[0])


@pytest.mark.slow
def test_killed_writers_leave_a_whole_ledger_and_their_counters_to_the_next(memory: Path, spawn: Spawn) -> None:
    inside, steps = _drill(memory, spawn, kills=10, seed=11)
    assert inside >= 5, f"only {inside} of 10 kills lay inside a publication"
    assert steps > 100


@pytest.mark.drill
def test_a_hundred_killed_writers_leave_a_whole_ledger_and_their_counters_to_the_next(
    memory: Path, spawn: Spawn
) -> None:
    inside, steps = _drill(memory, spawn, kills=100, seed=12)
    assert inside >= 50, f"only {inside} of 100 kills lay inside a publication"
    assert steps > 1000


def test_a_predecessor_is_abandoned_once_its_successor_lives(memory: Path, spawn: Spawn) -> None:
    spawn("crash", memory, 1, 50).wait(30)
    first = epochs(memory, "crash", 0)[0][1]
    assert probe(first) is ReadStatus.DEAD
    spawn("crash", memory, 2, 50).wait(30)
    assert probe(first) is ReadStatus.ABANDONED


def test_a_successor_starts_with_exactly_what_the_last_whole_publication_counted(memory: Path, spawn: Spawn) -> None:
    parities = set()
    for number in range(12):
        spawn("crash", memory, number, 400 + number).wait(30)
        with Reader.open(epochs(memory, "crash", 0)[-1][1]) as reader:
            died = reader.sample()
        parities.add(died.control["stats_index"] & 1)
        with Ledger.create(memory, toy_limits(engine="crash")) as ledger:
            begun = Reader.over(MemorySource(ledger.image)).sample()
        plan = begun.stats.plan
        for (name, labels), index in plan.counters.items():
            more = name == "engine_restarts_total"
            assert begun.stats.values[index] == died.stats.values[index] + more, (name, labels)
        assert _counters(begun) == _counters(died)
        if parities == {0, 1}:
            return
    pytest.fail("every writer died on the same buffer")
