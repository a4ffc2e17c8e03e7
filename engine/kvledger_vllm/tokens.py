"""The tokens of scheduled requests: how many are computed and generated, and the time to and between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvledger.pace import Pace
from kvledger.words import Event, RequestClass
from kvledger.writer import Ledger
from kvledger_vllm.delayed import Delayed
from kvledger_vllm.pace import TokenClock
from kvledger_vllm.requests import Ids, Requests
from kvledger_vllm.scheduled import I32, Scheduled, nobody, output_lists

_NS_PER_SECOND = 1e9
_MOST_IN_FLIGHT = 64
_PROOF_NS, _PROOF_UPDATES = 1_000_000_000, 64


class Tokens:
    """Token columns of the slots, and their histograms."""

    def __init__(self, ledger: Ledger, requests: Requests, scheduler: Any, delayed: Delayed) -> None:
        self._ledger, self._slots, self._requests, self._scheduler = ledger, ledger.slots, requests, scheduler
        self._size = min(group.block_size_tokens for group in ledger.limits.groups)
        self._connected = getattr(scheduler, "connector", None) is not None
        self._steps: deque[tuple[Any, Scheduled]] = deque(maxlen=_MOST_IN_FLIGHT)
        self._last = self._measured = nobody()
        self._measured_ns = 0
        self._computed, self._output = TokenClock(ledger, Pace.COMPUTED), TokenClock(ledger, Pace.GENERATED)
        # Where a step may give a request more than one token, or take some back, sums do not tell who got how many.
        self._one_each = not getattr(scheduler, "num_spec_tokens", 0) and (
            getattr(scheduler, "num_sampled_tokens_per_step", 1) == 1
        )
        stats, kind = ledger.stats, {"class": RequestClass.DEFAULT.word}
        self._values = stats.values
        self._generated = stats.counter("generation_tokens_total")
        self._last_token = stats.gauge("last_token_ns")
        self._first = stats.histogram("time_to_first_token", **kind)
        self._gap = stats.histogram("inter_token_latency", **kind)
        self._gaps = delayed.of(self._observe_gap)

    def _observe_gap(self, gap_and_count: tuple[float, int]) -> None:
        self._gap.observe(*gap_and_count)

    def settle(self) -> None:
        """Before requests come, go or change their state: every count is in its slot."""
        self._computed.end()
        self._output.end()

    # -- scheduled ------------------------------------------------------------------------------------------------

    def scheduled(self, output: Any) -> None:
        """A step was scheduled: copy what its requests have computed, in flight included."""
        if not output.num_scheduled_tokens:
            return
        step = self._step_of(output)
        self._steps.append((output, step))
        if not self._one_more_computed(step, output):
            self._copy_computed(step)

    def _step_of(self, output: Any) -> Scheduled:
        scheduled, last = output.num_scheduled_tokens, self._last
        cached = output.scheduled_cached_reqs.req_ids
        # In the usual step all are in this list, in the same order.
        ids = cached if len(cached) == len(scheduled) else list(scheduled)
        if ids == last.ids and (last.seatings == self._requests.seatings or self._has_its_slots(last)):
            return last
        requests = [self._scheduler.requests[request_id] for request_id in ids]
        at = np.array([self._requests.require(request) for request in requests], np.intp)
        outputs, seatings = output_lists(requests), self._requests.seatings
        self._last = Scheduled(ids, at, self._slots.serial[at], requests, outputs, seatings)
        return self._last

    def _has_its_slots(self, step: Scheduled) -> bool:
        """Whether every request of a step still sits where it sat."""
        if step.seatings != self._requests.seatings:
            if not (self._slots.serial[step.slots] == step.serials).all():
                return False
            step.seatings = self._requests.seatings
        return True

    def _one_more_computed(self, step: Scheduled, output: Any) -> bool:
        """The usual step: each computes one token more than vLLM's numbers before it, which are those known here.

        That they add up is proved once a second: to look at each costs more than all else, being out of the cache.
        """
        count = len(step.ids)
        before: Sequence[int] = getattr(output.scheduled_cached_reqs, "num_computed_tokens", ())
        if (
            not count
            or output.total_num_scheduled_tokens != count
            or len(before) != count
            or not self._one_each
            or step.computed_sum < 0
            or before[0] != step.computed_first
            or ((self._connected or self._proof_is_due(step)) and sum(before) != step.computed_sum)
        ):
            return False
        step.computed_first += 1
        step.computed_sum += count
        if not self._computed.runs:
            self._computed.begin(step.slots)
        self._computed.tick()
        return True

    def _proof_is_due(self, step: Scheduled) -> bool:
        now = self._ledger.now_ns
        if now - step.proved_ns < _PROOF_NS:
            return False
        step.proved_ns = now
        return True

    def _copy_computed(self, step: Scheduled) -> None:
        self._computed.end()
        computed = np.array([request.num_computed_tokens for request in step.requests], np.int32)
        step.computed_first, step.computed_sum = computed.item(0), int(computed.sum())
        self._store_computed(step.slots, computed)

    def _store_computed(self, slots: Ids, computed: I32) -> None:
        self._slots.computed_tokens[slots] = computed
        # Full blocks may be shared from now on; the one that is being filled is the request's own.
        self._slots.own_from_token[slots] = computed - computed % self._size

    # -- updated --------------------------------------------------------------------------------------------------

    def updated(self, output: Any, handed_out: int) -> None:
        """A step's output was applied: copy how many tokens its requests have generated, and time the new ones.

        `handed_out` is how many requests were given new tokens and went on, -1 where that is not known.
        """
        step = self._take(output)
        if step is None:
            return
        whole = self._has_its_slots(step)
        if not (whole and step is self._measured and self._one_more_generated(step, handed_out)):
            self._copy_generated(step, whole)

    def _one_more_generated(self, step: Scheduled, handed_out: int) -> bool:
        """The usual update: the same requests as in the last one were given a token more each.

        By vLLM's own lists where it is not known how many were, and every so often; see `_one_more_computed`.
        """
        count = len(step.ids)
        if not step.outputs or not self._one_each:
            return False
        generated = step.generated_sum + count
        told = handed_out == count and not self._connected and step.updates % _PROOF_UPDATES
        if not told and sum(map(len, step.outputs)) != generated:
            return False
        step.updates += 1
        now = self._ledger.now_ns
        step.generated_sum = generated
        if not self._output.runs:
            self._output.begin(step.slots)
        self._output.tick()
        self._values[self._generated] += count
        self._values[self._last_token] = now
        self._gaps(((now - self._measured_ns) / _NS_PER_SECOND, count))
        self._measured_ns = now
        return True

    def _copy_generated(self, step: Scheduled, whole: bool) -> None:
        self._output.end()
        slots, requests = step.slots, step.requests
        counts = np.array(_output_tokens(requests), np.int32)
        if not whole:
            live = self._slots.serial[slots] == step.serials
            slots, counts = slots[live], counts[live]
            requests = [request for request, there in zip(requests, live.tolist(), strict=True) if there]
        if not self._one_each:
            self._copy_running(slots, requests)
        before = self._slots.output_tokens[slots]
        new = counts - before
        step.generated_sum = int(counts.sum())
        self._measured = step if whole and (new > 0).all() else nobody()
        if not new.any():
            return
        self._slots.output_tokens[slots] = counts
        self._measure(slots[new > 0], before[new > 0], new[new > 0])
        self._measured_ns = self._ledger.now_ns

    def _copy_running(self, slots: Ids, requests: list[Any]) -> None:
        """Rejected drafts take computed tokens back."""
        rows = [row for row, request in enumerate(requests) if request.status.name == "RUNNING"]
        computed = np.array([requests[row].num_computed_tokens for row in rows], np.int32)
        self._store_computed(slots[rows], computed)

    def _take(self, output: Any) -> Scheduled | None:
        if not output.num_scheduled_tokens:
            return None
        while self._steps:
            scheduled, step = self._steps.popleft()
            if scheduled is output:
                return step
        return None

    def _measure(self, slots: Ids, before: I32, new: I32) -> None:
        view, now = self._slots, self._ledger.now_ns
        self._values[self._generated] += int(new.sum())
        self._values[self._last_token] = now
        for slot in slots[before == 0].tolist():
            self._first_token(slot)
        further = before > 0
        if further.any():
            since, together = view.last_token_ns[slots[further]], new[further]
            gaps = (now - since) / _NS_PER_SECOND
            if (together == 1).all() and (since == since[0]).all():
                self._gap.observe(gaps.item(0), len(gaps))
            elif (together == 1).all():
                self._gap.observe_many(gaps)
            else:
                self._gap.observe_many(np.repeat(gaps / together, together))
        view.last_token_ns[slots] = self._ledger.now_value

    def _first_token(self, slot: int) -> None:
        view, now = self._slots, self._ledger.now_ns
        view.first_token_ns[slot] = now
        self._first.observe((now - view.arrived_ns.item(slot)) / _NS_PER_SECOND)
        blocks = int(view.table_blocks[slot].sum())
        self._ledger.event(Event.FIRST_TOKEN, view.serial.item(slot), blocks=blocks)


def _output_tokens(requests: list[Any]) -> list[int]:
    """Tokens each request has generated; past the property where the list behind it is there, in half the time."""
    if hasattr(requests[0], "_output_token_ids"):
        return [len(request._output_token_ids) for request in requests]
    return [request.num_output_tokens for request in requests]
