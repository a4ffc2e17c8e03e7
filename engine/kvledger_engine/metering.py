"""What the block side measures about itself: allocator and sharing time, lifetimes, hits, first blocks.

Owns the handles of those series. Changes no block; the durations are real ones, and 0 under a virtual clock, whose
ledgers must not depend on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.words import PreemptedFate, RequestClass, SwapDirection
from kvledger_engine.accounts import PrefixAccounts, Price
from kvledger_engine.compiled import lifetimes as kernels
from kvledger_engine.ids import Ids, Integers, ids
from kvledger_engine.memory import CacheMemory


class Metering:
    """The measurements of one `KvCache`."""

    def __init__(self, memory: CacheMemory) -> None:
        ledger = memory.ledger
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        stats = ledger.stats
        self._values = stats.values
        self.now_ns: Callable[[], int] = (lambda: 0) if ledger.clock.virtual else time.perf_counter_ns
        """The stopwatch: what `shared` and `allocated` want to know from their beginning."""
        self._sharing, self._allocation = stats.counter("sharing_overhead_seconds_total"), stats.histogram("allocation")
        self._failures = stats.counter("allocation_failures_total")
        self._first_block = [stats.histogram("time_to_first_block", **{"class": c.word}) for c in RequestClass]
        self._queried, self._hit = (stats.counter(f"prefix_{word}_tokens_total") for word in ("queried", "hit"))
        self._kept = stats.counter("preempted_blocks_total", fate=PreemptedFate.KEPT.word)
        self._recycled = stats.counter("preempted_blocks_total", fate=PreemptedFate.RECYCLED.word)
        self._swapped = stats.counter("preempted_blocks_total", fate=PreemptedFate.SWAPPED.word)
        self._moved = [stats.counter("swapped_blocks_total", direction=way.word) for way in SwapDirection]
        self.accounts = PrefixAccounts(ledger)
        """Who in particular the time and the hits belong to."""
        self._attached_ns, self._handle = memory.arrays.attached_ns, memory.handle
        self._references = np.zeros(ledger.limits.max_requests, np.int32)  # that slots took of blocks they found

    def shared(self, began_ns: int, price: Price, slots: Ids | int, *, part: float = 1.0, besides: float = 0.0) -> None:
        """A part of the time since `began_ns` is what sharing cost, for the request or the requests in `slots`.

        Seconds of the compute's count `besides`, but under a virtual clock. Not to be nested.
        """
        seconds = (self.now_ns() - began_ns) / NS_PER_SECOND * part
        if not self._ledger.clock.virtual:
            seconds += besides
        self._values[self._sharing] += seconds
        self.accounts.spent(price, slots, seconds)

    def allocated(self, began_ns: int) -> None:
        """An allocation took the time since `began_ns`."""
        self._allocation.observe((self.now_ns() - began_ns) / NS_PER_SECOND)

    def failed(self) -> None:
        """An allocation found no room."""
        self._values[self._failures] += 1

    def count_query(self, slot: int, tokens: int, hit_tokens: int) -> None:
        """A request was admitted: tokens looked up, and those found."""
        self.accounts.admitted(slot, tokens, hit_tokens)
        self._values[self._queried] += tokens
        self._values[self._hit] += hit_tokens

    def attached(self, slot: int, references: int) -> None:
        """The slot's table begins now, with so many references to blocks that there were already."""
        self._attached_ns[slot] = self._ledger.now_ns
        self._references[slot] = references

    def given_back(self, began_ns: int, slot: int, blocks: int) -> None:
        """The slot has given so many blocks back since `began_ns`; those it found as it began are sharing's part."""
        if found := self._references.item(slot):
            self._references[slot] = 0
            self.shared(began_ns, Price.REFERENCE, slot, part=min(1.0, found / max(blocks, 1)))

    def first_blocks(self, slots: Ids) -> None:
        """The slots hold blocks and never did before."""
        now_ns = self._ledger.now_ns
        for slot in slots.tolist():
            self._slots.first_block_ns[slot] = now_ns
            waited = (now_ns - int(self._slots.arrived_ns[slot])) / NS_PER_SECOND
            self._first_block[int(self._slots.request_class[slot])].observe(waited)

    def recycled(self, slots: Integers, blocks: Integers) -> None:
        """Each slot is about to give a block back that has left its window: how long it held it."""
        kernels.lifetimes(self._handle, ids(slots), ids(blocks))

    def moved(self, blocks: int, direction: SwapDirection) -> None:
        """Blocks were copied between the pool and host memory."""
        self._values[self._moved[direction]] += blocks

    def preempted(self, blocks: int, kept: int, saved: int) -> None:
        """What becomes of the blocks that a preempted slot gives back: some are `kept` by others or the cache.

        Of a slot whose content was `saved` in so many blocks, the others held none yet.
        """
        if saved:
            self._values[self._swapped] += saved
            self._values[self._recycled] += blocks - saved
        else:
            self._values[self._kept] += kept
            self._values[self._recycled] += blocks - kept
