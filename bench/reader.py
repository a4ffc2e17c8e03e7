"""Row `reader`: a sample and a full audit of a million shuffled active blocks, as a share of the sampling interval."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench import busywriter, children
from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import Windows, estimate
from bench.result import Bar, Quantity, Result, Sense
from bench.tmpfs import ledger_directory
from kvledger.invariants import suspects
from kvledger.reader import Reader
from kvledger.snapshot import Sample
from kvledger_agent.ledger_source import LedgerSource

NAME = "reader"
BLOCKS, QUICK_BLOCKS = 1_000_000, 100_000
INTERVAL_SECONDS, QUICK_INTERVAL_SECONDS = 1.0, 0.25
STEPS_PER_SECOND = 400
BAR = Bar(Sense.AT_MOST, 15.0)
HOW = f"""Processor time of this thread, as a share of one core at one look a second: `Reader.sample`, `Reader.audit`
and the judgement over every block (`invariants.suspects`), which must find nothing. The writer is another process with
the engine's own pool, tables and prefix index: {busywriter.SEQUENCES} sequences over shuffled blocks, decoding at up
to {STEPS_PER_SECOND} steps a second, every {busywriter.REPLACE_EVERY_STEPS}th of which ends one sequence and begins
another. Looks are spread over the interval as the agent's are; the agent's whole round (`LedgerSource.look`, which
adds rings, histories, request views and the verdict) is taken in turns with them."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look: processor and wall milliseconds of each part, what share of the blocks could be judged, and when."""

    sample_ms: float
    audit_ms: float
    wall_ms: float
    round_ms: float
    judged_percent: float
    sample: Sample


class Watcher:
    """Looks at one ledger in the two ways that are compared. Raises `BenchError` when a look finds a fault."""

    def __init__(self, path: Path) -> None:
        self._reader = Reader.open(path)
        self._source = LedgerSource.open(path)

    def look(self) -> Look:
        """A sample and an audit with its judgement, then a round of the agent, each on its own reader."""
        started, wall = time.thread_time_ns(), time.perf_counter_ns()
        sample = self._reader.sample()
        sampled = time.thread_time_ns()
        audit = self._reader.audit()
        found = suspects(audit)
        audited, ended = time.thread_time_ns(), time.perf_counter_ns()
        judged = float(np.count_nonzero(audit.stable)) / audit.capacity_blocks
        if found:
            raise BenchError(f"a healthy ledger has suspects: {found[:3]}")
        before_round = time.thread_time_ns()
        self._source.look()
        return Look(
            sample_ms=(sampled - started) / 1e6,
            audit_ms=(audited - sampled) / 1e6,
            wall_ms=(ended - wall) / 1e6,
            round_ms=(time.thread_time_ns() - before_round) / 1e6,
            judged_percent=100 * judged,
            sample=sample,
        )

    def close(self) -> None:
        """Close both readers."""
        self._reader.close()
        self._source.close()


def measure(effort: Effort) -> list[Result]:
    """Looks at a busy ledger, one per interval."""
    blocks = effort.choose(BLOCKS, QUICK_BLOCKS)
    interval = QUICK_INTERVAL_SECONDS if effort.quick else INTERVAL_SECONDS
    with ledger_directory() as directory:
        arguments = (str(directory), str(blocks), str(STEPS_PER_SECOND))
        with (
            children.module("bench.busywriter", *arguments) as ready,
            closing(Watcher(Path(ready["ledger"]))) as watcher,
        ):
            watcher.look()
            looks = [watcher.look() for _ in _paced(effort.rounds(full=60, quick=8), interval)]
    return [_result(looks, blocks)]


def _paced(rounds: Iterator[int], interval_seconds: float) -> Iterator[int]:
    """The rounds, one per interval."""
    due = time.monotonic()
    for number in rounds:
        time.sleep(max(0.0, due - time.monotonic()))
        yield number
        due += interval_seconds


def _result(looks: list[Look], blocks: int) -> Result:
    def of(name: str) -> Windows:
        return np.array([getattr(look, name) for look in looks])

    cpu_ms = of("sample_ms") + of("audit_ms")
    active = min(look.sample.stats.whole("active_blocks") for look in looks)
    if active < blocks:
        raise BenchError(f"{active:,} active blocks at the least, {blocks:,} were to be audited")
    return Result(
        row=NAME,
        name=f"sample and audit of {blocks:,} shuffled active blocks at 1 Hz, share of one core",
        estimate=estimate(cpu_ms / 1e3 * 100),
        unit="%",
        how=HOW,
        bar=BAR,
        quantities=(
            Quantity("sample, processor time", estimate(of("sample_ms")), "ms"),
            Quantity("audit with judgement, processor time", estimate(of("audit_ms")), "ms"),
            Quantity("sample and audit, wall time", estimate(of("wall_ms")), "ms"),
            Quantity("whole round of the agent, processor time", estimate(of("round_ms")), "ms"),
            Quantity("blocks judged in a look", estimate(of("judged_percent")), "%"),
        ),
        facts=(_writer_fact(looks[0].sample, looks[-1].sample), f"{active:,} active blocks at the least"),
    )


def _writer_fact(first: Sample, last: Sample) -> str:
    steps = (last.stats.counter("engine_steps_total") or 0.0) - (first.stats.counter("engine_steps_total") or 0.0)
    seconds = (last.clock_ns - first.clock_ns) / 1e9
    return f"the writer made {steps / seconds:.0f} steps a second, two publications each"
