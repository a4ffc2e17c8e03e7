"""The same engine without its instrument, for the price of it: nothing of the product knows that this can be done.

Owns the substitutes, which do nothing: wait clocks, block-second clocks, histograms with the times they are made of,
step phases and the allocator's stopwatch, rings. Change stamps, share clocks, reference lifetimes and the times of
tokens, which compiled kernels keep in passing, go to memory of its own. Pool, tables, prefix index, request records,
publications, gauges and counters are the engine's own, on a ledger file as any other, whose stats vector has no
buckets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from bench import hashes
from kvledger.blockseconds import BlockSeconds
from kvledger.peaks import Peaks
from kvledger.stats import Histogram, HistogramSpan, Stats, StatsPlan
from kvledger.views import I32
from kvledger.words import Event, FinishReason, WaitCause
from kvledger.writer import Ledger
from kvledger_engine.batch import Compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.ending import Ending
from kvledger_engine.ids import Ids
from kvledger_engine.lanes import Lane
from kvledger_engine.loop import EngineLoop
from kvledger_engine.metering import Metering
from kvledger_engine.progress import Progress
from kvledger_engine.summaries import Summaries
from kvledger_engine.waits import QUEUE, WaitQueue


class _NoHistogram(Histogram):
    """Counts nothing."""

    __slots__ = ()

    def __init__(self, span: HistogramSpan) -> None:
        super().__init__(memoryview(bytearray(16)).cast("d"), np.empty(0), span)

    def observe(self, value: float, count: int = 1) -> None:
        """Forget."""

    def observe_many(self, values: Sequence[float] | NDArray[np.float64]) -> None:
        """Forget."""


class _BareStats(Stats):
    """No histogram. Behind the vector is room for the one that kernels go on counting into."""

    def __init__(self, plan: StatsPlan) -> None:
        super().__init__(plan)
        self._nothing = HistogramSpan(plan.size, ())
        self.array = np.zeros(plan.size + self._nothing.size)[: plan.size]
        self.values = self.array.data.cast("B").cast("d")
        self.tenant_blocks = self.array[plan.tenant_blocks : plan.tenant_blocks + plan.columns]
        self.wait_clock = self.array[plan.wait_clock : plan.wait_clock + len(WaitCause)]

    def histogram(self, name: str, **labels: str) -> Histogram:
        """A handle on nothing."""
        return _NoHistogram(self._nothing)


class _BareBlockSeconds(BlockSeconds):
    """Charges without a clock."""

    def advance(self, now_ns: int) -> None:
        """Forget."""


class _BarePeaks(Peaks):
    def note(self, now_ns: int, active: float, used: float) -> None:
        """Forget."""


class _BareLedger(Ledger):
    """A ledger file without stamps, share clocks and rings: what kernels keep in passing goes to private memory."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        blocks, slots = self.blocks, self.slots
        blocks.changed_seq, slots.changed_seq = np.zeros_like(blocks.changed_seq), np.zeros_like(slots.changed_seq)
        blocks.share_clock = np.zeros_like(blocks.share_clock)
        blocks.share_since_ns = np.zeros_like(blocks.share_since_ns)
        slots.last_token_ns = np.zeros_like(slots.last_token_ns)

    def stamp(self, blocks: Ids | I32) -> None:
        """Forget."""

    def event(self, event: Event, serial: int, *, blocks: int = 0, detail: int = 0) -> None:
        """Forget."""

    def summary(self, record: tuple[Any, ...]) -> None:
        """Forget."""


class _BareQueue(WaitQueue):
    """The order of the queue without its clocks."""

    def advance(self) -> None:
        """Only what `put_back` insists on."""
        self._since_ns = self._ledger.now_ns

    def blocked_by(self, cause: WaitCause, own: Mapping[int, WaitCause] = MappingProxyType({})) -> None:
        """Forget."""

    def look(self) -> None:
        """Let arrivals join."""
        self.advance()
        for leader, group in self._arrivals.items():
            lane = self._open_lane(group)
            for slot in group.tolist():
                self._join(slot, lane)
            lane.entries[leader] = group
        self._arrivals.clear()

    def _join(self, slot: int, lane: Lane) -> None:
        self._lane_of[slot] = lane.number
        self._slots.queue[slot] = QUEUE

    def leave(self, leader: int) -> I32:
        """Take an entry out."""
        group = self._arrivals.pop(leader, None)
        if group is None:
            lane = self._lane(leader)
            group = lane.entries.pop(leader)
            self._lane_of[group] = -1
            if not lane.entries:
                del self._lanes[lane.number]
        self._count(group, -1)
        return group


class _BareMetering(Metering):
    """Counts look-ups and the price of sharing."""

    def allocated(self, began_ns: int) -> None:
        """Forget."""

    def attached(self, slot: int, references: int) -> None:
        """Only how many references it took: giving them back is a price of sharing, which is counted."""
        self._references[slot] = references

    def first_blocks(self, slots: Ids) -> None:
        """Forget."""


class _BareProgress(Progress):
    def _measure(self, slots: I32, *, steady: bool) -> None:
        """Forget."""


class _BareEnding(Ending):
    def _observe(self, slot: int, reason: FinishReason) -> None:
        self._ended[reason][self._slots.tenant.item(slot)] += 1


class _BareSummaries(Summaries):
    def write(self, slot: int, released_blocks: int) -> None:
        """Forget."""


def _observe_nothing(*_: object) -> None:
    pass


_SUBSTITUTES = {
    "kvledger.writer.Stats": _BareStats,
    "kvledger.writer.BlockSeconds": _BareBlockSeconds,
    "kvledger.writer.Peaks": _BarePeaks,
    "kvledger_engine.kvcache.Metering": _BareMetering,
    "kvledger_engine.ending.Summaries": _BareSummaries,
    "kvledger_engine.loop.Ending": _BareEnding,
    "kvledger_engine.loop.Progress": _BareProgress,
    "kvledger_engine.loop.WaitQueue": _BareQueue,
}


@contextmanager
def _substituted() -> Iterator[None]:
    with ExitStack() as stack:
        for name, substitute in _SUBSTITUTES.items():
            stack.enter_context(patch(name, substitute))
        stack.enter_context(patch("kvledger.catalog.stored_histograms", tuple))
        yield


def bare_engine(directory: Path, config: EngineConfig, compute: Compute) -> tuple[Ledger, EngineLoop]:
    """A new ledger file and the loop over it, both without the instrument."""
    with _substituted():
        ledger = _BareLedger.create(directory, config.limits())
        loop = EngineLoop(config, ledger, compute)
    hashes.pin(loop.cache)
    loop._observe_phases = _observe_nothing
    return ledger, loop
