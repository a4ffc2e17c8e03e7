"""Thousands of damaged ledgers: each gives a typed error or a bounded snapshot, soon, and none is read past its end."""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from kvledger.errors import LedgerUnreadable
from kvledger.invariants import counts, suspects
from kvledger.reader import Reader
from kvledger.source import FileSource, MemorySource, Source
from kvledger.status import ReadStatus
from tests.ledger.damage import Case, cases, populated

SEED = 20_240_229
MOST_SECONDS = 1.0
MOST_BYTES = 128 << 20


def _read_all(source: Source, *, rounds: int) -> str:
    """Everything a reader can do, so many times; the name of what came of it."""
    try:
        with Reader.over(source) as reader:
            for _ in range(rounds):
                sample = reader.sample()
                audit = reader.audit()
                found = suspects(audit)
                counts(sample, audit)
                sample.wait_seconds(), sample.wait_causes()
                _ = audit.stable, audit.table_references, audit.pin_references
                windows = reader.events(3), reader.summaries(0)
                peaks = reader.peaks()
            assert isinstance(sample.status, ReadStatus)
            assert len(sample.slots) <= 12
            assert len(found) <= 8 * 4096
            assert all(-1 <= suspect.block < 48 for suspect in found)
            assert all(len(window.records) <= 64 for window in windows)
            assert len(peaks) <= 8
            return sample.status.value
    except LedgerUnreadable as error:
        return type(error).__name__ if 0 < len(str(error)) < 600 else f"a message of {len(str(error))} characters"


class _Watched:
    """A source that fails the test when it is asked for bytes beyond its end."""

    def __init__(self, data: bytearray) -> None:
        self._inner, self._size = MemorySource(bytes(data)), len(data)

    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        assert offset >= 0, offset
        assert 0 <= length <= max(self._size, 1 << 24), length
        return self._inner.read(offset, length)

    def read_into(self, offset: int, target: np.ndarray) -> None:
        assert 0 <= offset <= offset + len(target) <= self._size, (offset, len(target), self._size)
        self._inner.read_into(offset, target)

    def writer_pid(self) -> int | None:
        return None

    def close(self) -> None:
        self._inner.close()


def _drill(damaged: Iterator[Case], directory: Path) -> Counter[str]:
    """Read every case once and half of them again, every eleventh through a file in `directory`."""
    ends: Counter[str] = Counter()
    with _bounded_memory():
        for number, case in enumerate(damaged):
            ends[_timed(case, directory if number % 11 == 0 else None, rounds=1 + (number % 4 < 2))] += 1
    return ends


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Whoever believes a damaged size and allocates it gets a MemoryError."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _timed(case: Case, directory: Path | None, *, rounds: int) -> str:
    """Read one case, through a file if there is a directory; says which case it was if that fails."""
    started = time.thread_time()
    try:
        if directory is None:
            end = _read_all(_Watched(case.data), rounds=rounds)
        else:
            path = directory / "damaged"
            path.write_bytes(case.data)
            end = _read_all(FileSource(path), rounds=rounds)
    except BaseException:
        print(f"damaged ledger {case.name}")
        raise
    took = time.thread_time() - started
    assert took < MOST_SECONDS, f"{case.name} took {took:.2f} s"
    return end


def _check(ends: Counter[str], count: int) -> None:
    print(f"seed {SEED}: {dict(ends)}")
    assert sum(ends.values()) == count
    read = sum(n for end, n in ends.items() if end.islower())
    assert read > count / 3, f"too few were read at all: {ends}"
    assert {"NotALedger", "Truncated", "OtherVersion"} <= set(ends), f"the damage was too tame: {ends}"


@pytest.mark.slow
@pytest.mark.needs("tmpfs")
def test_a_thousand_damaged_ledgers_give_typed_errors_or_bounded_snapshots(memory: Path) -> None:
    _check(_drill(cases(1_000, SEED), memory), 1_000)


@pytest.mark.drill
@pytest.mark.needs("tmpfs")
@pytest.mark.parametrize("thousand", range(1, 11))
def test_ten_thousand_damaged_ledgers_give_typed_errors_or_bounded_snapshots(memory: Path, thousand: int) -> None:
    _check(_drill(cases(1_000, SEED + thousand), memory), 1_000)


def test_an_undamaged_ledger_of_the_drill_reads_clean() -> None:
    for groups in (1, 2):
        with Reader.over(MemorySource(populated(SEED, groups=groups))) as reader:
            sample, audit = reader.sample(), reader.audit()
            assert len(sample.slots) > 0
            assert len(sample.pins) > 0
            assert suspects(audit) == []
            assert counts(sample, audit) == {}
            assert audit.damage == []
