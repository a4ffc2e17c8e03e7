"""The tokens of scheduled requests: how many are computed and generated.

Requests that decode go by the ledger's token clocks, as long as it adds up that each of them went on by one token:
vLLM's numbers of a step, and once in a while its own objects, one by one. All others are copied from those objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kvledger.pace import Pace
from kvledger.words import RequestState
from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells
from kvledger_vllm.delayed import Delayed
from kvledger_vllm.latencies import Latencies
from kvledger_vllm.pace import TokenClock
from kvledger_vllm.requests import Requests

_MOST_IN_FLIGHT, _FEW = 64, 8
_PROOF_NS, _PROOF_UPDATES = 1_000_000_000, 64


class Tokens:
    """Token counts of the slots, and the counter of all generated ones."""

    def __init__(self, ledger: Ledger, requests: Requests, scheduler: Any, delayed: Delayed) -> None:
        self._ledger, self._slots, self._requests, self._scheduler = ledger, Cells(ledger.slots), requests, scheduler
        self._size = min(group.block_size_tokens for group in ledger.limits.groups)
        self._computed, self._output = TokenClock(ledger, Pace.COMPUTED), TokenClock(ledger, Pace.GENERATED)
        self._object_of: dict[int, Any] = {}
        """vLLM's request in each slot that is or was running."""
        self._apart: dict[str, None] = {}
        """Ids of running requests that do not go by the clock of computed tokens, in order of admission."""
        self._last_of: dict[int, list[int]] = {}
        """What the clock of computed tokens will say when slots have computed all they are going to: those slots."""
        self._until: dict[int, int] = {}
        """Where in `_last_of` a slot is."""
        self._steps: deque[tuple[Any, list[str]]] = deque(maxlen=_MOST_IN_FLIGHT)
        self._proved_ns = self._updates = 0
        # Where a step may give a request more than one token, or take some back, sums do not tell who got how many.
        self._one_each = (
            not getattr(scheduler, "num_spec_tokens", 0)
            and getattr(scheduler, "num_sampled_tokens_per_step", 1) == 1
            and getattr(scheduler, "connector", None) is None
        )
        self._latencies, stats = Latencies(ledger, delayed), ledger.stats
        self._values = stats.values
        self._generated, self._last_token = stats.counter("generation_tokens_total"), stats.gauge("last_token_ns")

    def admitted(self, request: Any) -> None:
        """A request runs from now on."""
        self._apart[request.request_id] = None
        slot = self._requests.require(request)
        self._object_of[slot] = request
        self._leave_computed(slot)
        self._output.leave(slot)
        # A streaming session goes on with an output of its own.
        self._slots.output_tokens[slot] = min(self._slots.output_tokens[slot], request.num_output_tokens)

    def leave(self, request_id: str) -> None:
        """Before a request ends or is preempted: its counts are in its slot, and exact."""
        self._apart.pop(request_id, None)
        slot = self._requests.slot_of.get(request_id, -1)
        self._leave_computed(slot)
        if slot in self._output.slots:
            self._output.leave(slot)
            self._correct(slot, self._object_of[slot])

    def ended(self, request_id: str) -> None:
        """A request has left and ended: nothing of vLLM's is kept of it."""
        self._object_of.pop(self._requests.slot_of.get(request_id, -1), None)

    def lose(self, slot: int) -> None:
        """Before a slot's table begins anew: what a running request has computed is copied when it is scheduled."""
        if slot in self._computed.slots:
            self._leave_computed(slot)
            self._apart[self._object_of[slot].request_id] = None

    def regain(self, slot: int) -> None:
        """After a running request's table was changed as a whole: what it has computed is what it had."""
        request = self._object_of.get(slot)
        if request is not None and self._slots.state[slot] == RequestState.RUNNING:
            self._store_computed([slot], [request.num_computed_tokens])

    def _leave_computed(self, slot: int) -> None:
        self._computed.leave(slot)
        last = self._until.pop(slot, None)
        if last is not None:
            self._last_of[last].remove(slot)
            if not self._last_of[last]:
                del self._last_of[last]

    def _stop_computed(self) -> None:
        """Nobody goes by the clock any more: all are apart, those that this step leaves out, too."""
        for slot in self._computed.slots:
            self._apart[self._object_of[slot].request_id] = None
        self._computed.stop()
        self._last_of.clear()
        self._until.clear()

    def _correct(self, slot: int, request: Any) -> None:
        """An ending request may be handed out without a token."""
        said = int(request.num_output_tokens)
        if (wrong := self._slots.output_tokens[slot] - said) != 0:
            self._slots.output_tokens[slot] = said
            # More than one is no mistake of the clock's: a streaming session has begun its output anew.
            self._values[self._generated] -= wrong if wrong == 1 else 0

    # -- scheduled ------------------------------------------------------------------------------------------------

    def scheduled(self, output: Any) -> None:
        """A step was scheduled: how much its requests have computed, what is in flight included."""
        scheduled = output.num_scheduled_tokens
        if not scheduled:
            return
        if done := self._last_of.get(self._computed.now):
            self._let_go(done)
        apart = [request_id for request_id in self._apart if request_id in scheduled] if self._apart else []
        going = len(self._computed.slots)
        alone = sum([scheduled[request_id] for request_id in apart])
        if len(scheduled) == going + len(apart) and output.total_num_scheduled_tokens == going + alone:
            if going:
                self._computed.tick()
            together = self._one_each and not self._disproved()
        else:
            together = False
        if not together:
            self._stop_computed()
            self._apart |= dict.fromkeys(scheduled)
            apart = list(scheduled)
        self._steps.append((output, apart))
        if apart:
            self._copy_computed(apart, [scheduled[i] for i in apart] if together else [])

    def _disproved(self) -> bool:
        """Once a second: whether vLLM's own numbers, one by one, do not add up to what the clock says."""
        now = self._ledger.now_ns
        if now - self._proved_ns < _PROOF_NS:
            return False
        self._proved_ns = now
        clock = self._computed
        return bool(sum([self._object_of[slot].num_computed_tokens for slot in clock.slots]) != clock.total)

    def _copy_computed(self, ids: Sequence[str], tokens: Sequence[int]) -> None:
        """Copy vLLM's numbers. `tokens` they were scheduled for: who was for one goes by the clock from now on."""
        requests = [self._scheduler.requests[request_id] for request_id in ids]
        slots = [self._requests.require(request) for request in requests]
        self._object_of.update(zip(slots, requests, strict=True))
        self._store_computed(slots, [request.num_computed_tokens for request in requests])
        for request_id, slot, count in zip(ids, slots, tokens, strict=False):
            left = self._most_computed(slot) - self._slots.computed_tokens[slot]
            if count == 1 and left > 0:
                self._computed.join(slot)
                del self._apart[request_id]
                self._until[slot] = last = self._computed.now + left
                self._last_of.setdefault(last, []).append(slot)

    def _let_go(self, slots: list[int]) -> None:
        """A step ahead of its outputs vLLM does not schedule who only waits for its last token."""
        for slot in list(slots):
            self._leave_computed(slot)
            self._apart[self._object_of[slot].request_id] = None

    def _most_computed(self, slot: int) -> int:
        """Tokens whose keys and values a request needs at most: not those of its last token."""
        return int(self._slots.prompt_tokens[slot] + self._slots.max_tokens[slot] - 1)

    def _store_computed(self, slots: list[int], computed: list[int]) -> None:
        if len(slots) <= _FEW:
            for slot, count in zip(slots, computed, strict=True):
                self._slots.computed_tokens[slot] = count
                self._slots.own_from_token[slot] = count - count % self._size
            return
        at, tokens = np.array(slots, np.intp), np.array(computed, np.int32)
        columns = self._ledger.slots
        columns.computed_tokens[at] = tokens
        # Full blocks may be shared from now on; the one that is being filled is the request's own.
        columns.own_from_token[at] = tokens - tokens % self._size

    # -- updated --------------------------------------------------------------------------------------------------

    def updated(self, output: Any, handed_out: int) -> None:
        """A step's output was applied: how many tokens its requests have generated; the new ones are timed.

        `handed_out` is how many requests something was handed out of, -1 where that is not known.
        """
        apart = self._take(output)
        if apart is None:
            return
        clock, values = self._output, self._values
        slots = self._running(apart)
        grown = self._grown(slots)
        going = len(clock.slots)
        if self._one_each and handed_out == going + len(grown) and not self._lost_count(going):
            if going:
                clock.tick()
                values[self._generated] += going
                self._latencies.all_went_on(going)
        else:
            clock.stop()
            slots = self._running(output.num_scheduled_tokens)
            grown = self._grown(slots)
        if not self._one_each:
            self._copy_running(slots)
        if grown:
            self._measure(grown)
        if grown or going:
            values[self._last_token] = self._ledger.now_ns
            self._latencies.updated()

    def _take(self, output: Any) -> list[str] | None:
        if not output.num_scheduled_tokens:
            return None
        while self._steps:
            scheduled, apart = self._steps.popleft()
            if scheduled is output:
                return apart
        return None

    def _running(self, ids: Iterable[str]) -> list[int]:
        """Slots of those of a step's requests that are still there and do not go by the clock."""
        slot_of, going, known = self._requests.slot_of, self._output.slots, self._object_of
        slots = [slot_of.get(request_id, -1) for request_id in ids]
        return [slot for slot in slots if slot in known and slot not in going]

    def _grown(self, slots: list[int]) -> list[tuple[int, int, int]]:
        """(slot, tokens before, tokens now) of those that have generated more."""
        if not slots:
            return []
        before = [self._slots.output_tokens[slot] for slot in slots]
        now = [self._object_of[slot].num_output_tokens for slot in slots]
        return [row for row in zip(slots, before, now, strict=True) if row[2] > row[1]]

    def _lost_count(self, going: int) -> bool:
        """Every so often: whether the lists of those that go by the clock are not all one token longer."""
        self._updates += 1
        if self._updates % _PROOF_UPDATES:
            return False
        clock = self._output
        return bool(sum([self._object_of[slot].num_output_tokens for slot in clock.slots]) != clock.total + going)

    def _copy_running(self, slots: list[int]) -> None:
        """Rejected drafts take computed tokens back."""
        running = [slot for slot in slots if self._object_of[slot].status.name == "RUNNING"]
        self._store_computed(running, [self._object_of[slot].num_computed_tokens for slot in running])

    def _measure(self, grown: list[tuple[int, int, int]]) -> None:
        """Time new tokens one request at a time; who got one goes by the clock from now on."""
        for slot, before, count in grown:
            new = count - before
            self._slots.output_tokens[slot] = count
            self._values[self._generated] += new
            self._latencies.one_went_on(slot, new, first=not before)
            if self._one_each and new == 1 and self._slots.state[slot] == RequestState.RUNNING:
                self._output.join(slot)
