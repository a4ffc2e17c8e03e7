"""What waiting requests wait for. Owns the queue's clock, and every wait's accounting in its slot.

Those behind the queue's head wait for what the head waits for, on one clock for all. A request that vLLM passed over
waits by itself (`slot.queue` = 1 + cause), and one that no schedule has seen waits for `step`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import NS_PER_SECOND
from kvledger.snapshot import NOT_LOOKED_AT, OWN_CAUSE
from kvledger.words import RequestClass, RequestState, WaitCause
from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells

F64 = NDArray[np.float64]
QUEUE = 0
_DEFAULT = RequestClass.DEFAULT.word


class Waits:
    """Waiting slots: `fresh` not looked at yet, `queued` behind the head, `alone` passed over."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._slots = ledger, Cells(ledger.slots)
        self._values, self._clock = ledger.stats.values, ledger.stats.wait_clock
        self._cause_gauge, self._since_gauge = ledger.stats.gauge("queue_cause"), ledger.stats.gauge("queue_since_ns")
        self._histograms = [
            ledger.stats.histogram("wait", cause=cause.word, **{"class": _DEFAULT}) for cause in WaitCause
        ]
        self.fresh: set[int] = set()
        self.queued: set[int] = set()
        self.alone: set[int] = set()
        self._cause, self._since_ns = WaitCause.STEP, ledger.now_ns
        self._values[self._cause_gauge], self._values[self._since_gauge] = self._cause, self._since_ns

    def __len__(self) -> int:
        return len(self.fresh) + len(self.queued) + len(self.alone)

    def __contains__(self, slot: int) -> bool:
        return slot in self.fresh or slot in self.queued or slot in self.alone

    def arrive(self, slot: int) -> None:
        """A request that no schedule has looked at."""
        self._slots.queue[slot] = NOT_LOOKED_AT
        self.fresh.add(slot)

    def look(self) -> None:
        """A schedule has looked: what arrived before joins the queue, its wait for `step` being over."""
        self.advance()
        for slot in self.fresh:
            self._settle(slot, self._open(slot))
            self._join(slot)
        self.fresh.clear()

    def return_to(self, slot: int) -> None:
        """A preempted request's next wait begins."""
        self.advance()
        self._slots.queued_ns[slot] = self._ledger.now_ns
        self._join(slot)

    def part(self, slots: set[int]) -> None:
        """These, and no others, wait by themselves, deferred by the scheduler."""
        if not slots and not self.alone:
            return
        self.advance()
        for slot in self.alone - slots:
            self._settle(slot, self._open(slot))
            self._join(slot)
            self.alone.discard(slot)
        for slot in slots & self.queued:
            self._settle(slot, self._open(slot))
            self.queued.discard(slot)
            self._slots.queue[slot] = OWN_CAUSE + WaitCause.DEFERRED
            self._slots.wait_base[slot, WaitCause.DEFERRED] = self._ledger.now_ns / NS_PER_SECOND
            self.alone.add(slot)

    def blocked_by(self, cause: WaitCause) -> None:
        """From now on the queue waits for `cause`."""
        self.advance()
        self._cause = cause
        self._values[self._cause_gauge] = cause

    def advance(self) -> None:
        """Bring the queue's clock to now. With nobody in the queue none runs."""
        now_ns = self._ledger.now_ns
        if self.queued:
            self._clock[self._cause] += (now_ns - self._since_ns) / NS_PER_SECOND
        self._since_ns = self._values[self._since_gauge] = now_ns

    def leave(self, slot: int) -> None:
        """A wait is over, for whatever reason: one observation per cause of it."""
        if slot not in self:
            return
        self.advance()
        before = self._slots.wait_seconds[slot].copy()
        self._settle(slot, self._open(slot))
        for waiting in (self.fresh, self.queued, self.alone):
            waiting.discard(slot)
        whole = self._slots.wait_seconds[slot]
        first = self._slots.state[slot] == RequestState.WAITING
        for cause, seconds in enumerate((whole if first else whole - before).tolist()):
            if seconds > 0:
                self._histograms[cause].observe(seconds)

    def _join(self, slot: int) -> None:
        self._stamp(slot)
        self._slots.queue[slot] = QUEUE
        self._slots.wait_base[slot] = self._clock
        self.queued.add(slot)

    def _settle(self, slot: int, waited: F64) -> None:
        self._stamp(slot)
        self._slots.wait_seconds[slot] += waited

    def _open(self, slot: int) -> F64:
        """Seconds by cause since the slot's open wait, or its present part, began. The clock must be at now."""
        if slot in self.queued:
            queued: F64 = self._clock - self._slots.wait_base[slot]
            return queued
        waits, now = np.zeros(len(WaitCause)), self._ledger.now_ns
        if slot in self.alone:
            cause = int(self._slots.queue[slot]) - OWN_CAUSE
            waits[cause] = max(0.0, now / NS_PER_SECOND - self._slots.wait_base[slot, cause])
        else:
            waits[WaitCause.STEP] = (now - self._slots.queued_ns[slot]) / NS_PER_SECOND
        return waits

    def _stamp(self, slot: int) -> None:
        """Before a wait changes, as before a state does: a reader must not add up half of a change."""
        self._slots.changed_seq[slot] = self._ledger.seq
