"""One publication: what a message tells of an entry point of the scheduler, made visible in the ledger.

Owns the order of things. Blocks and slots are stamped first; released tables are read before blocks begin anew, and
tables are extended before counts change, so that clocks and charges come out right.
"""

from __future__ import annotations

from typing import Any

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells
from kvledger_vllm.holdings import Holdings, Plan
from kvledger_vllm.lifecycle import Lifecycle
from kvledger_vllm.message import SCHEDULE, UPDATE, Message
from kvledger_vllm.messageclock import MessageClock
from kvledger_vllm.mirror import Change, Mirror
from kvledger_vllm.pins import Pins
from kvledger_vllm.requests import Requests
from kvledger_vllm.row import Row
from kvledger_vllm.scan import RollingScan
from kvledger_vllm.steps import Steps
from kvledger_vllm.tokens import Tokens


class Publisher:
    """The mirror of one scheduler: everything of its ledger, changed in publications."""

    def __init__(self, ledger: Ledger, clock: MessageClock) -> None:
        self._ledger, self._clock = ledger, clock
        self._slots, self._values = Cells(ledger.slots), ledger.stats.values
        self._requests = Requests(ledger, reserve=ledger.limits.max_num_seqs)
        self._mirror = Mirror(ledger)
        self._holdings = Holdings(ledger, self._requests, self._mirror, len(ledger.limits.groups))
        self._pins, self._steps, self._scan = Pins(ledger), Steps(ledger), RollingScan(ledger, self._mirror)
        self._tokens = Tokens(ledger, self._requests, self._scan)
        self._lifecycle = Lifecycle(ledger, self._requests, self._holdings, self._tokens)
        stats = ledger.stats
        self._running, self._waiting = stats.gauge("running"), stats.gauge("waiting")
        self._evictions = stats.counter("evictions_total")
        self.closed = False
        """Nothing more is to come."""
        self._row = Row(ledger, self._requests, self._mirror, self._holdings, self._tokens)

    def gather(self, message: Message) -> bool:
        """Whether a message only goes on, and waits now for `settle`: no other may be published before that."""
        return not self._lifecycle.waiting and self._row.add(message)

    def settle(self) -> None:
        """Publish the messages that were gathered, all at once."""
        row = self._row
        if not row.messages:
            return
        last = row.messages[-1]
        self._clock.set(last.now_ns)
        self._ledger.begin()
        self._mirror.queued = last.free
        row.apply()
        for message in row.messages:
            self._steps.published(message.tapped_ns)
            if message.kind == SCHEDULE:
                self._steps.scheduled(message.began_ns, message.ended_ns)
            else:
                self._steps.updated(message.began_ns, message.ended_ns)
            self._values[self._evictions] += message.evictions
            self._compare(message, unchanged=True)
        self._values[self._running] = last.running
        self._ledger.end()
        row.clear()

    def close(self, message: Message) -> None:
        """Publish for the last time, and say whether the core ends as it was asked to."""
        self._clock.set(message.now_ns)
        self._ledger.publish_now()
        self._ledger.control[CONTROL_INDEX["closed"]] = bool((message.rare or {}).get("clean"))
        self.closed = True

    def publish(self, message: Message) -> bool:
        """Publish one message, with nothing gathered before it. False where everything has to be told anew."""
        rare = message.rare or {}
        self._clock.set(message.now_ns)
        self._ledger.begin()
        self._lifecycle.arrive(rare)
        plan = self._holdings.plan(message)
        self._steps.published(message.tapped_ns)
        if message.kind == UPDATE:
            self._tokens.updated(message)
        released = self._change(message, rare, plan)
        if message.kind == SCHEDULE:
            self._lifecycle.scheduled(message, rare)
            self._holdings.prove(message.proof)
            self._steps.scheduled(message.began_ns, message.ended_ns)
        elif message.kind == UPDATE:
            self._steps.updated(message.began_ns, message.ended_ns)
        else:
            self._lifecycle.other(rare)
        self._lifecycle.end(rare, released)
        self._values[self._evictions] += message.evictions
        self._values[self._running], self._values[self._waiting] = message.running, self._lifecycle.waiting
        followed = not self._holdings.missed
        if not followed:
            self._scan.corrected(self._holdings.missed, "table(s) changed by no way it hooks")
            self._holdings.missed = 0
        self._ledger.end(idle=message.idle)
        return followed

    def _change(self, message: Message, rare: dict[str, Any], plan: Plan) -> dict[int, int]:
        """Make any changes of blocks and tables. Returns how many blocks each slot gave up whose table began anew."""
        mirror = self._mirror
        mirror.queued = message.free
        touched = rare.get("touched", [])
        if "pool" in rare:
            touched = mirror.differing(0, rare["pool"])
        if touched or message.fresh or plan:
            fresh = [block - 1 for block in message.fresh]
            self._apply(mirror.look(touched, fresh, message.codes), plan)
        else:
            mirror.count()
        self._pins.sync(rare, self._serial_of)
        # Only now: what was noted must be in the ledger before anything counts as changed behind the hooks.
        self._compare(message, unchanged=False)
        released = {slot: len(blocks) for slot, blocks in plan.cleared.items()}
        self._lifecycle.preempt(rare, released)
        return released

    def _apply(self, change: Change, plan: Plan) -> None:
        ledger, mirror = self._ledger, self._mirror
        mirror.stamp(plan.blocks())
        for slot in plan.slots():
            self._slots.changed_seq[slot] = ledger.seq
        mirror.begin(change)
        self._holdings.clear(plan)
        mirror.allocate(change)
        self._holdings.extend(plan)
        mirror.end(change)

    def _compare(self, message: Message, *, unchanged: bool) -> None:
        if wrong := self._scan.differing(message.stretch, unchanged=unchanged):
            self._apply(self._mirror.look(wrong, [], []), Plan())

    def _serial_of(self, request_id: str) -> int:
        slot = self._requests.slot_of.get(request_id)
        return 0 if slot is None else int(self._slots.serial[slot])
