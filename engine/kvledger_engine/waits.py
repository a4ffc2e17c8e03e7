"""The wait queue and the clocks that say what its members wait for.

Owns the order of the queue and every wait's accounting. One clock per cause runs for the whole queue, and only the
head's cause runs; a member keeps the clocks as they stood when it joined, so a step costs O(changes), not O(members).
Decides nothing about who may leave.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from kvledger.views import F64, I32
from kvledger.words import RequestClass, RequestState, WaitCause
from kvledger.writer import Ledger

NOT_LOOKED_AT = 255
"""`slot.queue` of a request that arrived and that no schedule has seen: it waits for `step`, on a clock of its own."""
QUEUE = 0
_NS_PER_SECOND = 1e9


class WaitQueue:
    """First come, first served. An entry is a leader and its group: the slots that enter and leave together."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._slots = ledger, ledger.slots
        self._values, self._clock = ledger.stats.values, ledger.stats.wait_clock
        self._cause_gauge, self._since_gauge = ledger.stats.gauge("queue_cause"), ledger.stats.gauge("queue_since_ns")
        self._arrivals: dict[int, I32] = {}
        self._order: OrderedDict[int, I32] = OrderedDict()
        self._cause, self._since_ns = WaitCause.STEP, ledger.now_ns
        self._histograms = [
            [ledger.stats.histogram("wait", cause=cause.word, **{"class": kind.word}) for kind in RequestClass]
            for cause in WaitCause
        ]
        self.sequences = 0
        """Sequences waiting, all members of all entries."""
        self._values[self._cause_gauge], self._values[self._since_gauge] = self._cause, self._since_ns

    def __len__(self) -> int:
        return len(self._order) + len(self._arrivals)

    def __contains__(self, leader: int) -> bool:
        return leader in self._order or leader in self._arrivals

    def arrive(self, group: I32) -> None:
        """A new request: at the end, and not looked at before the next schedule."""
        self._slots.queue[group] = NOT_LOOKED_AT
        self._arrivals[int(group[0])] = group
        self.sequences += len(group)

    def look(self) -> None:
        """A schedule looks at the queue: what arrived meanwhile joins it, its wait for `step` being over."""
        if self._order:
            self.advance()
        self._since_ns = self._ledger.now_ns
        if not self._arrivals:
            return
        for group in self._arrivals.values():
            for slot in group.tolist():
                self._stamp(slot)
                self._slots.wait_seconds[slot, WaitCause.STEP] += self._since_queued(slot)
                self._join(slot)
        self._order.update(self._arrivals)
        self._arrivals.clear()

    def put_back(self, group: I32) -> None:
        """A preempted group: to the front, and its second wait begins. Only within a schedule that has looked."""
        assert self._since_ns == self._ledger.now_ns, "the queue was not looked at in this publication"
        leader = int(group[0])
        self._slots.queued_ns[group] = self._ledger.now_ns
        for slot in group.tolist():
            self._join(slot)
        self._order[leader] = group
        self._order.move_to_end(leader, last=False)
        self.sequences += len(group)

    # Slots come one by one, and one element is stored faster by its number than by an array of numbers.

    def _stamp(self, slot: int) -> None:
        """Before a wait changes, as before a state does: a reader must not add up half of a change."""
        self._slots.changed_seq[slot] = self._ledger.seq_value

    def _join(self, slot: int) -> None:
        self._slots.queue[slot] = QUEUE
        self._slots.wait_base[slot] = self._clock

    def _since_queued(self, slot: int) -> float:
        seconds: float = (self._ledger.now_ns - self._slots.queued_ns.item(slot)) / _NS_PER_SECOND
        return seconds

    def head(self) -> I32 | None:
        """The group that is next, of those that were looked at."""
        return next(iter(self._order.values()), None)

    def blocked_by(self, cause: WaitCause) -> None:
        """From now on the queue waits for `cause`."""
        if self._order:
            self.advance()
        self._cause = cause
        self._values[self._cause_gauge] = cause

    def advance(self) -> None:
        """Bring the clock that runs to now. With nobody in the queue none runs."""
        now_ns = self._ledger.now_ns
        if self._order:
            self._clock[self._cause] += (now_ns - self._since_ns) / _NS_PER_SECOND
        self._since_ns = self._values[self._since_gauge] = now_ns

    def leave(self, leader: int) -> I32:
        """An entry's wait is over, for whatever reason: account for it, cause by cause. Returns its group."""
        arrived = self._arrivals.pop(leader, None)
        if arrived is None:
            self.advance()
            group = self._order.pop(leader)
        else:
            group = arrived
        for slot in group.tolist():
            self._stamp(slot)
            self._account(slot, self._own(slot) if arrived is not None else self._clock - self._slots.wait_base[slot])
        self.sequences -= len(group)
        return group

    def _own(self, slot: int) -> F64:
        """The waits of a request that no schedule has looked at: all of it is `step`, on a clock of its own."""
        waits = np.zeros(len(WaitCause))
        waits[WaitCause.STEP] = self._since_queued(slot)
        return waits

    def _account(self, slot: int, waits: F64) -> None:
        """One observation per non-zero cause of a wait that ended. A first wait began on its own clock."""
        whole = self._slots.wait_seconds[slot]
        whole += waits
        first, kind = self._slots.state.item(slot) == RequestState.WAITING, self._slots.request_class.item(slot)
        for cause, seconds in enumerate((whole if first else waits).tolist()):
            if seconds:
                self._histograms[cause][kind].observe(seconds)
