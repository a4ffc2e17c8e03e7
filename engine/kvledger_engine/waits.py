"""The wait queue and the clocks that say what its members wait for.

Owns the order of each lane and every wait's accounting. One clock per cause runs for the whole queue; a lane that waits
for something of its own leaves that clock, its members all at once. A member keeps the clock as it stood when it
joined, so a step costs O(changes), not O(members). Decides nothing about who may leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.snapshot import NOT_LOOKED_AT, OWN_CAUSE
from kvledger.views import F64, I32, I64
from kvledger.words import RequestClass, RequestState, WaitCause
from kvledger.writer import Ledger
from kvledger_engine.lanes import Lane, lane_number

QUEUE = 0
"""`slot.queue` of a request on the queue's clock; one whose lane has left it has OWN_CAUSE + its cause, and one that no
schedule has seen NOT_LOOKED_AT: it waits for `step` since it was queued."""
_NO_CAUSES: Mapping[int, WaitCause] = {}
_PREEMPTED = (RequestState.PREEMPTED, RequestState.SWAPPED)


class WaitQueue:
    """Who waits. `laned` gives every tenant and class a lane; otherwise there is one for all."""

    def __init__(self, ledger: Ledger, *, laned: bool = False) -> None:
        self._ledger, self._slots, self._laned = ledger, ledger.slots, laned
        self._values, self._clock = ledger.stats.values, ledger.stats.wait_clock
        self._cause_gauge, self._since_gauge = ledger.stats.gauge("queue_cause"), ledger.stats.gauge("queue_since_ns")
        self._arrivals: dict[int, I32] = {}
        self._lanes: dict[int, Lane] = {}
        self._lane_of: I32 = np.full(ledger.limits.max_requests, -1, np.int32)
        self._begun: F64 = np.zeros((ledger.limits.max_requests, len(WaitCause)))
        self._cause, self._since_ns = WaitCause.STEP, ledger.now_ns
        self._histograms = [
            [ledger.stats.histogram("wait", cause=cause.word, **{"class": kind.word}) for kind in RequestClass]
            for cause in WaitCause
        ]
        self._on_clock = 0
        self._entries = 0
        self.sequences = 0
        """Sequences waiting, all members of all entries."""
        self.requests_by_tenant: I64 = np.zeros(ledger.limits.tenant_columns, np.int64)
        """Entries by tenant column."""
        self._values[self._cause_gauge], self._values[self._since_gauge] = self._cause, self._since_ns

    def __len__(self) -> int:
        return self._entries

    def __contains__(self, leader: int) -> bool:
        return leader in self._arrivals or bool(self._lane_of[leader] >= 0 and leader in self._lane(leader).entries)

    # -- coming ---------------------------------------------------------------------------------------------------

    def arrive(self, group: I32) -> None:
        """A new request: at the end, and not looked at before the next schedule."""
        self._slots.queue[group] = NOT_LOOKED_AT
        self._arrivals[int(group[0])] = group
        self._begun[group] = 0.0
        self._count(group, 1)

    def look(self) -> None:
        """A schedule looks at the queue: what arrived meanwhile joins it, its wait for `step` being over."""
        if self._on_clock:
            self.advance()
        self._since_ns = self._ledger.now_ns
        if not self._arrivals:
            return
        for leader, group in self._arrivals.items():
            lane = self._open_lane(group)
            for slot in group.tolist():
                self._stamp(slot)
                self._slots.wait_seconds[slot, WaitCause.STEP] += self._since_queued(slot)
                self._join(slot, lane)
            lane.entries[leader] = group
        self._arrivals.clear()

    def put_back(self, group: I32) -> None:
        """A preempted group: to the front of its lane, and its second wait begins. Only within a schedule.

        Those that were swapped out stay before those that were not: what they have saved is given back the sooner.
        """
        assert self._since_ns == self._ledger.now_ns, "the queue was not looked at in this publication"
        leader, lane = int(group[0]), self._open_lane(group)
        self._slots.queued_ns[group] = self._ledger.now_ns
        self._begun[group] = self._slots.wait_seconds[group]
        for slot in group.tolist():
            self._join(slot, lane)
        lane.entries[leader] = group
        lane.entries.move_to_end(leader, last=False)
        if self._slots.state[leader] != RequestState.SWAPPED:
            for other in self._swapped_in(lane):
                lane.entries.move_to_end(other, last=False)
        self._count(group, 1)

    def _swapped_in(self, lane: Lane) -> list[int]:
        """The swapped ones among the preempted at the front of a lane, the last first."""
        states = self._slots.state
        before = takewhile(lambda leader: states[leader] in _PREEMPTED, lane.entries)
        return [leader for leader in before if states[leader] == RequestState.SWAPPED][::-1]

    def _open_lane(self, group: I32) -> Lane:
        """The lane of a group that is about to join; one more entry may be on the clock."""
        number = 0
        if self._laned:
            leader = int(group[0])
            number = lane_number(self._slots.tenant.item(leader), self._slots.request_class.item(leader))
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = Lane(number)
        self._on_clock += lane.own is None
        return lane

    def _count(self, group: I32, change: int) -> None:
        self._entries += change
        self.sequences += change * len(group)
        self.requests_by_tenant[self._slots.tenant[group[0]]] += change

    def _stamp(self, slot: int) -> None:
        """Before a wait changes, as before a state does: a reader must not add up half of a change.

        Slots come one by one: one element is stored faster by its number than by an array of numbers.
        """
        self._slots.changed_seq[slot] = self._ledger.seq_value

    def _join(self, slot: int, lane: Lane) -> None:
        self._lane_of[slot] = lane.number
        if lane.own is None:
            self._slots.queue[slot] = QUEUE
            self._slots.wait_base[slot] = self._clock
        else:
            self._slots.queue[slot] = OWN_CAUSE + lane.own
            self._slots.wait_base[slot, lane.own] = self._now_seconds

    def _since_queued(self, slot: int) -> float:
        seconds: float = (self._ledger.now_ns - self._slots.queued_ns.item(slot)) / NS_PER_SECOND
        return seconds

    @property
    def _now_seconds(self) -> float:
        return self._ledger.now_ns / NS_PER_SECOND

    # -- what they wait for ---------------------------------------------------------------------------------------

    def head(self) -> I32 | None:
        """The group that is next, of those that were looked at, where there is one lane for all."""
        for lane in self._lanes.values():
            return lane.head
        return None

    def lanes(self) -> Iterator[Lane]:
        """Lanes in which somebody waits who was looked at."""
        return iter(self._lanes.values())

    def requests_of(self, column: int) -> int:
        """Requests of a tenant that wait, looked at or not."""
        return self.requests_by_tenant.item(column)

    def lane_of(self, slot: int) -> int:
        """The number of the lane in which a sequence waits."""
        return self._lane_of.item(slot)

    def _lane(self, slot: int) -> Lane:
        return self._lanes[self.lane_of(slot)]

    def blocked_by(self, cause: WaitCause, own: Mapping[int, WaitCause] = _NO_CAUSES) -> None:
        """From now on the queue waits for `cause`, and lanes, by number, for another one of their own."""
        if self._on_clock:
            self.advance()
        for lane in self._lanes.values():
            alone = own.get(lane.number, cause)
            if (alone if alone is not cause else None) is not lane.own:
                self._move(lane, alone if alone is not cause else None)
        self._cause = cause
        self._values[self._cause_gauge] = cause

    def _move(self, lane: Lane, own: WaitCause | None) -> None:
        """A lane waits for something else than the queue, or does no longer: what its members waited is settled."""
        self.advance()
        slots, members, now = self._slots, (self._lane_of == lane.number).nonzero()[0], self._now_seconds
        slots.changed_seq[members] = self._ledger.seq_value
        if lane.own is None:
            slots.wait_seconds[members] += self._clock - slots.wait_base[members]
        else:
            slots.wait_seconds[members, lane.own] += now - slots.wait_base[members, lane.own]
        if own is None:
            slots.queue[members], slots.wait_base[members] = QUEUE, self._clock
        else:
            slots.queue[members], slots.wait_base[members, own] = OWN_CAUSE + own, now
        self._on_clock += len(lane.entries) * ((own is None) - (lane.own is None))
        lane.own = own

    def advance(self) -> None:
        """Bring the clock that runs to now. With nobody on it none runs."""
        now_ns = self._ledger.now_ns
        if self._on_clock:
            self._clock[self._cause] += (now_ns - self._since_ns) / NS_PER_SECOND
        self._since_ns = self._values[self._since_gauge] = now_ns

    # -- leaving --------------------------------------------------------------------------------------------------

    def leave(self, leader: int) -> I32:
        """An entry's wait is over, for whatever reason: account for it, cause by cause. Returns its group."""
        group = self._arrivals.pop(leader, None)
        if group is not None:
            for slot in group.tolist():
                self._stamp(slot)
                self._slots.wait_seconds[slot, WaitCause.STEP] += self._since_queued(slot)
                self._observe(slot)
        else:
            group = self._leave_lane(leader)
        self._count(group, -1)
        return group

    def _leave_lane(self, leader: int) -> I32:
        lane = self._lane(leader)
        if lane.own is None:
            self.advance()
            self._on_clock -= 1
        group = lane.entries.pop(leader)
        for slot in group.tolist():
            self._stamp(slot)
            self._settle(slot, lane)
            self._observe(slot)
            self._lane_of[slot] = -1
        if not lane.entries:
            del self._lanes[lane.number]
        return group

    def _settle(self, slot: int, lane: Lane) -> None:
        slots = self._slots
        if lane.own is None:
            slots.wait_seconds[slot] += self._clock - slots.wait_base[slot]
        else:
            slots.wait_seconds[slot, lane.own] += self._now_seconds - slots.wait_base[slot, lane.own]

    def _observe(self, slot: int) -> None:
        """One observation per non-zero cause of the wait that ended."""
        kind = self._slots.request_class.item(slot)
        for cause, seconds in enumerate((self._slots.wait_seconds[slot] - self._begun[slot]).tolist()):
            if seconds:
                self._histograms[cause][kind].observe(seconds)
