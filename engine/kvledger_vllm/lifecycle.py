"""What becomes of vLLM's requests: they arrive, wait, run, are preempted, end and give back; noted by the hooks.

Owns the order in which slots, waits, tokens and endings change with them. Touches no block and no table.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from kvledger.words import Event, PreemptedFate, PreemptionMode, RequestState, WaitCause
from kvledger.writer import Ledger
from kvledger_vllm.causes import head_cause, is_paused
from kvledger_vllm.cells import Cells
from kvledger_vllm.ending import Ending
from kvledger_vllm.holdings import Holdings
from kvledger_vllm.notes import Notes
from kvledger_vllm.requests import Requests
from kvledger_vllm.tokens import Tokens
from kvledger_vllm.waits import Waits


class Lifecycle:
    """The requests of one scheduler. `holdings` says how many blocks they have."""

    def __init__(
        self, ledger: Ledger, scheduler: Any, notes: Notes, requests: Requests, holdings: Holdings, tokens: Tokens
    ) -> None:
        self._ledger, self._scheduler, self._notes = ledger, scheduler, notes
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

    def leave(self) -> None:
        """Before anything of them changes: who ended or was preempted has exact counts of tokens."""
        for request, _ in chain(self._notes.ending, self._notes.preempted):
            self._tokens.leave(request.request_id)
        for request, _ in self._notes.ending:
            self._tokens.ended(request.request_id)

    def arrive(self) -> None:
        """Requests that came take a slot, if one can be spared, and wait for a schedule to look at them."""
        for request in self._notes.arrived:
            self._values[self._prompted] += request.num_prompt_tokens
            slot = self._requests.arrive(request)
            if slot is not None:
                self._waits.arrive(slot)

    def preempt(self, released: dict[int, int]) -> None:
        """Requests that lost their blocks wait again; `released` says how many blocks each slot gave up."""
        for request, computed in self._notes.preempted:
            slot, slots = self._requests.require(request), self._slots
            self._requests.move(slot, RequestState.PREEMPTED)
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

    def scheduled(self, output: Any, throttled: bool) -> None:
        """A schedule ended: who was admitted runs, and who still waits does so for a cause."""
        self._waits.look()
        for request_id in self._admitted(output):
            self._admit(self._scheduler.requests[request_id])
        for request, tokens in self._notes.hits:
            if request.num_preemptions == 0:
                self._slots.hit_tokens[self._requests.require(request)] = tokens
                self._values[self._queried] += request.num_tokens
                self._values[self._hit] += tokens
        self._tokens.scheduled(output)
        self._blocked(output, throttled)

    def scheduled_again(self, output: Any, throttled: bool) -> None:
        """A schedule ended that admitted nobody, with requests that run going on: as `scheduled`, but for those."""
        if self._waits:
            self._waits.look()
        self._tokens.scheduled(output)
        if self._waits:
            self._blocked(output, throttled)

    def other(self) -> None:
        """An entry point ended that is no half of a step: it may have begun a pause."""
        if self._waits and is_paused(self._scheduler):
            # Who has just come, too: while all is paused no schedule looks at anybody.
            self._waits.look()
            self._waits.blocked_by(WaitCause.PAUSED)

    def _admitted(self, output: Any) -> list[str]:
        new = [data.req_id for data in output.scheduled_new_reqs]
        return new + list(output.scheduled_cached_reqs.resumed_req_ids)

    def _admit(self, request: Any) -> None:
        slot, slots = self._requests.require(request), self._slots
        self._waits.leave(slot)
        self._requests.move(slot, RequestState.RUNNING)
        self._tokens.admitted(request)
        self._values[self._last_token] = self._ledger.now_ns
        lost = self._requests.lost_tokens.pop(slot, 0)
        found = next((tokens for hit, tokens in self._notes.hits if hit is request), 0)
        self._values[self._recomputed] += max(0, lost - found)
        self._ledger.event(Event.ADMITTED, slots.serial[slot], blocks=self._holdings.held(slot))

    def _blocked(self, output: Any, throttled: bool) -> None:
        deferred = getattr(self._scheduler, "deferred_waiting", None)
        slot_of = self._requests.slot_of
        self._waits.part({slot_of[r.request_id] for r in deferred if r.request_id in slot_of} if deferred else set())
        if not self._waits.queued:
            return
        cause = head_cause(self._scheduler, output, preempted=bool(self._notes.preempted), may_throttle=throttled)
        self._waits.blocked_by(cause)
        if cause is WaitCause.POOL:
            self._values[self._failures] += 1

    def end(self, released: dict[int, int]) -> None:
        """Requests that ended are over; those that gave everything back leave their slots to who stands."""
        notes, slot_of = self._notes, self._requests.slot_of
        for request, told_ns in notes.ending:
            slot = slot_of.get(request.request_id)
            if slot is None:
                if self._requests.forget_standing(request.request_id):
                    self._ending.ended_standing(request, by_engine=notes.cancelled_by_engine)
                continue
            self._waits.leave(slot)
            held = released.get(slot, 0) or self._holdings.held(slot)
            self._ending.ended(request, slot, told_ns=told_ns, by_engine=notes.cancelled_by_engine, held_blocks=held)
        for request_id, at_ns in notes.freed.items():
            slot = slot_of.get(request_id)
            if slot is not None:
                self._ending.released(request_id, slot, at_ns=at_ns, blocks=released.get(slot, 0))
        while (slot := self._requests.next_standing()) is not None:
            self._waits.arrive(slot)
