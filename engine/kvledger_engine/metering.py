"""What the block side measures about itself: allocator and sharing time, lifetimes, hits, first blocks.

Owns the handles of those series. Changes no block; the durations are real ones, and 0 under a virtual clock, whose
ledgers must not depend on the machine.
"""

from __future__ import annotations

import time

import numpy as np

from kvledger.stats import Histogram
from kvledger.words import PreemptedFate, ReleaseCause, RequestClass
from kvledger.writer import Ledger
from kvledger_engine.evict import Ids

_NS_PER_SECOND = 1e9


class _Stopwatch:
    """Adds the time spent inside `with` to a counter, or observes it in a histogram."""

    __slots__ = ("_began_ns", "_counter", "_histogram", "_real", "_values")

    def __init__(self, ledger: Ledger, *, counter: int | None = None, histogram: Histogram | None = None) -> None:
        self._values, self._counter, self._histogram = ledger.stats.values, counter, histogram
        self._real = not ledger.clock.virtual
        self._began_ns = 0

    def __enter__(self) -> None:
        self._began_ns = time.perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        elapsed = (time.perf_counter_ns() - self._began_ns) / _NS_PER_SECOND if self._real else 0.0
        if self._counter is not None:
            self._values[self._counter] += elapsed
        if self._histogram is not None:
            self._histogram.observe(elapsed)


class Metering:
    """The measurements of one `KvCache`."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        stats = ledger.stats
        self._values = stats.values
        self._sharing = _Stopwatch(ledger, counter=stats.counter("sharing_overhead_seconds_total"))
        self._allocation = _Stopwatch(ledger, histogram=stats.histogram("allocation"))
        self._first_block = [stats.histogram("time_to_first_block", **{"class": c.word}) for c in RequestClass]
        self._alone = stats.histogram("block_reference_lifetime", shared="false")
        self._shared = stats.histogram("block_reference_lifetime", shared="true")
        self._queried, self._hit = (stats.counter(f"prefix_{word}_tokens_total") for word in ("queried", "hit"))
        self._kept = stats.counter("preempted_blocks_total", fate=PreemptedFate.KEPT.word)
        self._recycled = stats.counter("preempted_blocks_total", fate=PreemptedFate.RECYCLED.word)
        self._attached_ns = np.zeros(ledger.limits.max_requests, np.int64)

    def sharing(self) -> _Stopwatch:
        """Context in which time counts as the price of sharing. Not to be nested."""
        return self._sharing

    def allocation(self) -> _Stopwatch:
        """Context of one allocation."""
        return self._allocation

    def count_query(self, tokens: int, hit_tokens: int) -> None:
        """A request was admitted: tokens looked up, and those found."""
        self._values[self._queried] += tokens
        self._values[self._hit] += hit_tokens

    def attached(self, slot: int) -> None:
        """The slot's table begins now; blocks older than that were shared with it now."""
        self._attached_ns[slot] = self._ledger.now_ns

    def first_blocks(self, slots: Ids) -> None:
        """The slots hold blocks: for those that never did, their first block has come."""
        now_ns = self._ledger.now_ns
        for slot in slots[self._slots.first_block_ns[slots] == 0].tolist():
            self._slots.first_block_ns[slot] = now_ns
            waited = (now_ns - int(self._slots.arrived_ns[slot])) / _NS_PER_SECOND
            self._first_block[int(self._slots.request_class[slot])].observe(waited)

    def released(self, slot: int, blocks: Ids, cause: ReleaseCause) -> None:
        """The slot is about to give these blocks back: how long it held them; if preempted, what becomes of them."""
        since = np.maximum(self._blocks.allocated_ns[blocks], self._attached_ns[slot])
        held = (self._ledger.now_ns - since) / _NS_PER_SECOND
        others = self._blocks.ref_count[blocks] >= 2
        shared = others | (self._blocks.owner[blocks] != self._slots.serial[slot])
        self._alone.observe_many(held[~shared])
        self._shared.observe_many(held[shared])
        if cause is ReleaseCause.PREEMPTION:
            kept = int(np.count_nonzero(others | (self._blocks.index_slot[blocks] >= 0)))
            self._values[self._kept] += kept
            self._values[self._recycled] += len(blocks) - kept
