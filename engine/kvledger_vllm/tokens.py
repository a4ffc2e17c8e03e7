"""The tokens of scheduled requests: how many are computed and generated, added up step by step.

Where each request of a step did the same as in the last one, or got one token, vLLM's numbers of the step say so, and
all are counted together; else each is told by its own count. A few are told in every schedule, to prove it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.writer import Ledger
from kvledger_vllm.latencies import Latencies
from kvledger_vllm.message import Message
from kvledger_vllm.requests import Requests
from kvledger_vllm.scan import RollingScan

Slots = NDArray[np.intp]
MOST_IN_FLIGHT = 64
_NOBODY: Slots = np.zeros(0, np.intp)


class Tokens:
    """Token counts of the slots, and the counter of all generated ones."""

    def __init__(self, ledger: Ledger, requests: Requests, scan: RollingScan) -> None:
        self._ledger, self._slots, self._requests, self._scan = ledger, ledger.slots, requests, scan
        self._size = min(group.block_size_tokens for group in ledger.limits.groups)
        self.members, self._counts = _NOBODY, np.zeros(0, np.int32)
        self._count_of: dict[int, int] = {}
        self.in_flight: deque[tuple[int, Slots, NDArray[np.uint64]]] = deque(maxlen=MOST_IN_FLIGHT)
        """Step, slots of its requests, and their serials then, of every step whose output has not come."""
        self._latencies, stats = Latencies(ledger), ledger.stats
        self._values = stats.values
        self._generated, self._last_token = stats.counter("generation_tokens_total"), stats.gauge("last_token_ns")

    def scheduled(self, message: Message) -> None:
        """A step was scheduled: how much its requests have computed, what is in flight included."""
        if message.tokens is not None:
            self.members = np.array([self._requests.require(i) for i in message.tokens], np.intp)
            self._counts = np.array(list(message.tokens.values()), np.int32)
            self._count_of = dict(zip(self.members.tolist(), message.tokens.values(), strict=True))
        members = self.members
        if not message.step:
            return
        self.in_flight.append((message.step, members, self._slots.serial[members]))
        self._store_computed(members, self._slots.computed_tokens[members] + self._counts)

    def count_of(self, slot: int) -> int:
        """How many tokens a slot computes in a step that does as the last one did."""
        return self._count_of.get(slot, 0)

    def have_output(self) -> bool:
        """Whether each request of the last schedule has generated a token."""
        return bool(self._slots.output_tokens[self.members].all())

    def went_on(self, scheduled: list[int], updated_ns: list[int]) -> None:
        """Steps like the last one were scheduled, and of the oldest in flight outputs came, a token for each request.

        All of these are of the requests of the last schedule, which have a token each and are there.
        """
        members, outputs, flying = self.members, len(updated_ns), self.in_flight
        serials = self._slots.serial[members]
        ahead = [*flying, *((step, members, serials) for step in scheduled)]
        flying.clear()
        flying.extend(ahead[outputs:])
        self._store_computed(members, self._slots.computed_tokens[members] + self._counts * len(scheduled))
        if outputs:
            self._slots.output_tokens[members] += outputs
            self._values[self._generated] += outputs * len(members)
            self._latencies.went_on_in_step(members, updated_ns)
            self._values[self._last_token] = updated_ns[-1]

    def told(self, slot: int, computed: int, output: int) -> None:
        """A request that runs from now on: its own counts. A streaming session goes on with an output of its own."""
        self._store_computed(slot, computed)
        self._slots.output_tokens[slot] = min(self._slots.output_tokens.item(slot), output)

    def lost(self, slot: int) -> None:
        """A preempted request computes everything anew."""
        self._store_computed(slot, 0)

    def ended(self, slot: int, output: int) -> None:
        """A request ended with so many tokens generated."""
        self._grow(slot, output)
        self._slots.output_tokens[slot] = output

    def updated(self, message: Message) -> None:
        """A step's output was applied: how many tokens its requests have generated; the new ones are timed."""
        members = self._take(message.step)
        if message.tokens is None:
            if len(members):
                self._all_went_on(members)
        else:
            for slot, computed, output in self._rows(message.tokens):
                self._store_computed(slot, computed)
                self._grow(slot, output)
        if len(members) or message.tokens:
            # A part of a prompt is progress, too, though nobody has a token of it yet.
            self._values[self._last_token] = self._ledger.now_ns

    def prove(self, proof: list[Any] | None) -> None:
        """Compare a few requests' own counts with what was added up, and put right what differs."""
        for slot, computed, output in self._rows(proof or [], width=4):
            said = self._slots.computed_tokens.item(slot), self._slots.output_tokens.item(slot)
            if said != (computed, output):
                self._store_computed(slot, computed)
                self._values[self._generated] += max(0, output - said[1])
                self._slots.output_tokens[slot] = output
                self._scan.corrected(1, f"request with {said} tokens computed and generated has {computed, output}")

    def _rows(self, told: list[Any], width: int = 3) -> list[tuple[int, int, int]]:
        slot_of = self._requests.slot_of
        rows = zip(told[::width], told[1::width], told[2::width], strict=True)
        return [(slot_of[i], computed, output) for i, computed, output in rows if i in slot_of]

    def _take(self, step: int) -> Slots:
        """Slots of those of a step's requests that are still there."""
        while step and self.in_flight:
            number, members, serials = self.in_flight.popleft()
            if number == step:
                here: Slots = members[self._slots.serial[members] == serials]
                return here
        return _NOBODY

    def _all_went_on(self, members: Slots) -> None:
        outputs = self._slots.output_tokens
        first = outputs[members] == 0
        outputs[members] += 1
        self._values[self._generated] += len(members)
        self._latencies.went_on(members, first)

    def _grow(self, slot: int, output: int) -> None:
        before = self._slots.output_tokens.item(slot)
        if output > before:
            self._slots.output_tokens[slot] = output
            self._values[self._generated] += output - before
            self._latencies.one_went_on(slot, output - before, first=not before)

    def _store_computed(self, slots: Slots | int, computed: NDArray[np.int32] | int) -> None:
        self._slots.computed_tokens[slots] = computed
        # Full blocks may be shared from now on; the one that is being filled is the request's own.
        self._slots.own_from_token[slots] = computed - computed % self._size
