"""Deadlines of requests: until when one may wait for its first block, and how long a sequence may run.

Owns two heaps; what is not due yet costs a look at `next_ns`, so a step costs O(those that are due). Ends nobody
itself.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

from kvledger.clock import NS_PER_SECOND
from kvledger.views import I32
from kvledger.words import RequestState
from kvledger.writer import Ledger
from kvledger_engine.config import EngineConfig
from kvledger_engine.request import RequestTable

_SPARE = 64


class Deadlines:
    """When the engine gives requests up. A request's own timeouts count where they are shorter than the engine's."""

    def __init__(self, config: EngineConfig, ledger: Ledger, requests: RequestTable) -> None:
        self._ledger, self._slots, self._requests = ledger, ledger.slots, requests
        self._queue_seconds = _finite(config.queue_timeout_seconds)
        self._run_seconds = _finite(config.run_timeout_seconds)
        self._waits, self._runs = _Heap(), _Heap()
        self.next_ns: float = math.inf
        """Nobody is overdue before that."""

    def arrived(self, group: I32, queue_timeout_seconds: float | None) -> None:
        """A request was accepted: its wait counts from its arrival."""
        leader = int(group[0])
        seconds = min(self._queue_seconds, _finite(queue_timeout_seconds))
        self._push(self._waits, int(self._slots.arrived_ns[leader]), seconds, leader)

    def started(self, group: I32) -> None:
        """A request was admitted for the first time: its run counts from now, preemptions included."""
        for slot in group.tolist():
            seconds = min(self._run_seconds, self._requests.run_timeouts_seconds.item(slot))
            self._push(self._runs, self._ledger.now_ns, seconds, slot)

    def overdue_waits(self) -> list[int]:
        """Leaders that have waited too long and never held a block. Each is told once."""
        return [slot for slot, _ in self._due(self._waits) if self._slots.state[slot] == RequestState.WAITING]

    def overdue_runs(self) -> list[tuple[int, int]]:
        """(slot, when it was due) of sequences that have run too long. Each is told once."""
        return self._due(self._runs)

    def _push(self, heap: _Heap, since_ns: int, seconds: float, slot: int) -> None:
        if seconds == math.inf:
            return
        due_ns = since_ns + int(seconds * NS_PER_SECOND)
        heappush(heap.entries, (due_ns, self._slots.serial.item(slot), slot))
        self.next_ns = min(self.next_ns, due_ns)
        if len(heap.entries) > heap.bound:
            heap.entries = [entry for entry in heap.entries if self._is_live(entry)]
            heapify(heap.entries)
            heap.bound = 2 * len(heap.entries) + _SPARE

    def _due(self, heap: _Heap) -> list[tuple[int, int]]:
        now_ns, found = self._ledger.now_ns, list[tuple[int, int]]()
        while heap.entries and heap.entries[0][0] <= now_ns:
            entry = heappop(heap.entries)
            if self._is_live(entry):
                found.append((entry[2], entry[0]))
        self.next_ns = min((each.entries[0][0] for each in (self._waits, self._runs) if each.entries), default=math.inf)
        return found

    def _is_live(self, entry: tuple[int, int, int]) -> bool:
        return bool(self._slots.serial.item(entry[2]) == entry[1])


class _Heap:
    """(due, serial, slot). Those of ended requests are dropped once `bound` is reached: at most half are dead then."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, int]] = []
        self.bound = _SPARE


def _finite(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
