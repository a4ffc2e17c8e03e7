"""What becomes of vLLM's requests: they arrive, wait, run, are preempted, end and give back; told by the tap.

Owns the order in which slots, waits, tokens and endings change with them. Touches no block and no table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.words import Event, PreemptedFate, PreemptionMode, RequestState, WaitCause
from kvledger.writer import Ledger
from kvledger_vllm.arrivals import Arrival
from kvledger_vllm.cells import Cells
from kvledger_vllm.ending import Ending
from kvledger_vllm.holdings import Holdings
from kvledger_vllm.message import Message
from kvledger_vllm.requests import Requests
from kvledger_vllm.tokens import Tokens
from kvledger_vllm.waits import Waits

Rare = Mapping[str, Any]
Released = Mapping[int, int]


class Lifecycle:
    """The requests of one scheduler. `holdings` says how many blocks they have."""

    def __init__(self, ledger: Ledger, requests: Requests, holdings: Holdings, tokens: Tokens) -> None:
        self._ledger = ledger
        self._requests, self._holdings, self._tokens = requests, holdings, tokens
        self._slots, self._values = Cells(ledger.slots), ledger.stats.values
        self._waits, self._ending = Waits(ledger), Ending(ledger, requests)
        stats = ledger.stats
        self._last_token, self._prompted = stats.gauge("last_token_ns"), stats.counter("prompt_tokens_total")
        self._queried, self._hit = (stats.counter(f"prefix_{word}_tokens_total") for word in ("queried", "hit"))
        self._failures = stats.counter("allocation_failures_total")
        self._preemptions = stats.counter("preemptions_total", mode=PreemptionMode.RECOMPUTE.word)
        self._recomputed = stats.counter("recomputed_tokens_total")
        self._kept = stats.counter("preempted_blocks_total", fate=PreemptedFate.KEPT.word)
        self._recycled = stats.counter("preempted_blocks_total", fate=PreemptedFate.RECYCLED.word)

    @property
    def waiting(self) -> int:
        """Requests that wait, with a slot or without."""
        return len(self._waits) + self._requests.standing

    def arrive(self, rare: Rare) -> None:
        """Requests that came take a slot, if one can be spared, and wait for a schedule to look at them."""
        for arrival in map(Arrival._make, rare.get("arrived", ())):
            if self._requests.knows(arrival.request_id):
                continue
            self._values[self._prompted] += arrival.prompt_tokens
            slot = self._requests.arrive(arrival)
            if slot is not None:
                self._waits.arrive(slot)

    def preempt(self, rare: Rare, released: Released) -> None:
        """Requests that lost their blocks wait again; `released` says how many blocks each slot gave up."""
        for request_id, computed in rare.get("preempted", ()):
            slot, slots = self._requests.require(request_id), self._slots
            self._requests.move(slot, RequestState.PREEMPTED)
            self._tokens.lost(slot)
            slots.preemptions[slot] += 1
            self._requests.lost_tokens[slot] = computed
            self._waits.return_to(slot)
            blocks = released.get(slot, 0)
            self._ledger.event(Event.PREEMPTED, slots.serial[slot], blocks=blocks)
            self._values[self._preemptions] += 1
            self._values[self._failures] += 1
            size = self._ledger.limits.groups[0].block_size_tokens
            kept = min(blocks, computed // size) if self._ledger.limits.prefix_caching else 0
            self._values[self._kept] += kept
            self._values[self._recycled] += blocks - kept

    def scheduled(self, message: Message, rare: Rare) -> None:
        """A schedule ended: who was admitted runs, and who still waits does so for a cause."""
        if self._waits:
            self._waits.look()
        found = {request_id: tokens for request_id, tokens, _ in rare.get("hits", ())}
        for request_id, tokens, looked_up in rare.get("hits", ()):
            self._slots.hit_tokens[self._requests.require(request_id)] = tokens
            self._values[self._queried] += looked_up
            self._values[self._hit] += tokens
        self._tokens.scheduled(message)
        self.admit(rare, found)
        self._tokens.prove(message.proof)
        self._blocked(rare)

    def admit(self, rare: Rare, found: Mapping[str, int]) -> None:
        """Requests that run from now on. `found`: tokens of theirs in the prefix cache."""
        for request_id, computed, output in rare.get("admitted", ()):
            slot, slots = self._requests.require(request_id), self._slots
            self._tokens.told(slot, computed, output)
            if slots.state[slot] == RequestState.RUNNING and slot not in self._waits:
                continue
            self._waits.leave(slot)
            self._requests.move(slot, RequestState.RUNNING)
            self._values[self._last_token] = self._ledger.now_ns
            lost = self._requests.lost_tokens.pop(slot, 0)
            self._values[self._recomputed] += max(0, lost - found.get(request_id, 0))
            self._ledger.event(Event.ADMITTED, slots.serial[slot], blocks=self._holdings.held(slot))

    def other(self, rare: Rare) -> None:
        """An entry point ended that is no half of a step: it may have begun a pause."""
        self.admit(rare, {})
        if self._waits and "paused" in rare:
            # Who has just come, too: while all is paused no schedule looks at anybody.
            self._waits.look()
            self._waits.blocked_by(WaitCause.PAUSED)

    def _blocked(self, rare: Rare) -> None:
        slot_of = self._requests.slot_of
        self._waits.part({slot_of[i] for i in rare.get("deferred", ()) if i in slot_of})
        if not self._waits.queued or "cause" not in rare:
            return
        cause = WaitCause(rare["cause"])
        self._waits.blocked_by(cause)
        if cause is WaitCause.POOL:
            self._values[self._failures] += 1

    def end(self, rare: Rare, released: Released) -> None:
        """Requests that ended are over; those that gave everything back leave their slots to who stands."""
        slot_of, by_engine = self._requests.slot_of, rare.get("by_engine", False)
        for request_id, status, told_ns, output in rare.get("ending", ()):
            slot = slot_of.get(request_id)
            if slot is None:
                if (arrival := self._requests.forget_standing(request_id)) is not None:
                    self._ending.ended_standing(arrival, status, by_engine=by_engine)
                continue
            self._tokens.ended(slot, output)
            self._waits.leave(slot)
            held = released.get(slot, 0) or self._holdings.held(slot)
            self._ending.ended(slot, status, told_ns=told_ns, by_engine=by_engine, held_blocks=held)
        for request_id, at_ns in rare.get("freed", {}).items():
            slot = slot_of.get(request_id)
            if slot is not None:
                self._ending.released(request_id, slot, at_ns=at_ns, blocks=released.get(slot, 0))
        while (slot := self._requests.next_standing()) is not None:
            self._waits.arrive(slot)
