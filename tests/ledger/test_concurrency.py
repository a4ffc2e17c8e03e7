"""A writer at full speed in one process, a reader in another: nothing torn, no false suspect, the true leak found."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from kvledger.errors import Busy
from kvledger.invariants import counts, suspects
from kvledger.reader import Reader
from kvledger.ring import RingWindow
from kvledger.words import FindingKind
from tests.children import Spawn
from tests.ledger.children import COUNTERS

SECONDS = 4.0
pytestmark = [pytest.mark.needs("tmpfs")]


def _only(directory: Path) -> Path:
    return next(directory.glob("*.kvledger"))


def _follow(window: RingWindow, seen: list[int], lost: list[int]) -> int:
    seen.append(len(window.records))
    lost.append(window.lost)
    return window.next


@pytest.mark.slow
def test_stats_are_never_torn_and_rings_lose_exactly_what_was_overwritten(memory: Path, spawn: Spawn) -> None:
    writer = spawn("busy", memory, 1, 64, 0)
    assert writer.stdin is not None
    assert writer.stdout is not None
    with Reader.open(_only(memory)) as reader:
        events_next, seen, lost, samples = 0, list[int](), list[int](), 0
        previous_seq, deadline, ring = 0, time.monotonic() + SECONDS, reader.head.limits.event_records
        while time.monotonic() < deadline or not seen:
            try:
                sample = reader.sample()
            except Busy:
                continue
            samples += 1
            stats = sample.stats
            marks = {stats.gauge("steps"), stats.gauge("waiting"), float(stats.values[-1])}
            marks |= {stats.counter(name) for name in COUNTERS}
            assert marks <= {0.0} or marks == {float(sample.published_seq)}, f"torn: {marks} in {sample.published_seq}"
            assert sample.published_seq >= previous_seq, "an older publication after a newer one"
            assert counts(sample) == {}
            previous_seq = sample.published_seq
            # The first time only when more was written than the ring holds, however slow this machine is.
            if seen or sample.control["events_head"] > ring:
                events_next = _follow(reader.events(events_next), seen, lost)
        writer.stdin.close()
        _, events = map(int, writer.stdout.readline().split())
        events_next = _follow(reader.events(events_next), seen, lost)
    assert samples > 50, f"only {samples} samples in {SECONDS} s"
    assert events_next == events
    assert sum(seen) + sum(lost) == events, f"{sum(seen)} read and {sum(lost)} lost of {events}"
    assert sum(lost) > 0, "the writer was too slow for this test to mean anything"


@pytest.mark.slow
def test_no_stable_block_is_suspected_under_a_busy_writer_and_events_are_whole(memory: Path, spawn: Spawn) -> None:
    writer = spawn("busy", memory, 2, 512, 0)
    with Reader.open(_only(memory)) as reader:
        audits, moving, unstable, last = 0, 0, 0, -1
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            audit = reader.audit()
            found = suspects(audit)
            assert found == [], f"audit {audits} at {audit.published_seq}: {found}"
            assert audit.damage == []
            audits, moving = audits + 1, moving + (audit.published_seq > last)
            unstable += int(np.count_nonzero(~audit.stable))
            last = audit.published_seq
            records = reader.events(0).records
            assert (np.diff(records["seq"].astype(np.int64)) >= 0).all(), "events out of order: a torn record"
            assert (records["serial"] > 0).all()
            assert (records["event"] > 0).all()
    assert writer.poll() is None
    assert audits > 50, f"only {audits} audits in {SECONDS} s"
    assert moving > 50, f"the writer published between only {moving} of {audits} audits"
    assert unstable > 0, "no block ever changed under an audit: the stamps were not put to the test"


@pytest.mark.slow
def test_a_block_leaked_by_a_busy_writer_is_found_and_stays_found(memory: Path, spawn: Spawn) -> None:
    writer = spawn("busy", memory, 3, 256, 500)
    assert writer.stdout is not None
    leaked = int(writer.stdout.readline())
    with Reader.open(_only(memory)) as reader:
        named = 0
        for _ in range(60):
            found = suspects(reader.audit())
            assert {s.block for s in found} <= {leaked}, f"beside {leaked}: {found}"
            assert {s.kind for s in found} <= {FindingKind.EXCESS_REFERENCE}
            assert all(s.excess == 1 for s in found)
            named += len(found)
    assert named > 30, f"the leak was named in {named} of 60 audits"


def test_a_reader_that_is_overtaken_serves_its_last_good_sample_marked(memory: Path, spawn: Spawn) -> None:
    spawn("hold", memory)
    with Reader.open(_only(memory)) as reader:
        first = reader.sample()
        reader._stats = lambda: None  # type: ignore[method-assign]
        again = reader.sample()
    assert first.status.value == "idle"
    assert again.status.value == "last_good"
    assert again.stats is first.stats
