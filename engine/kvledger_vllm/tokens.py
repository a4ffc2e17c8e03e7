"""The tokens of scheduled requests: how many are computed and generated, and the time to and between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.words import Event, RequestClass
from kvledger.writer import Ledger
from kvledger_vllm.requests import Ids, Requests

_NS_PER_SECOND = 1e9
_MOST_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The requests of one scheduled step, in vLLM's order: slots, their occupants' serials, and vLLM's objects."""

    ids: list[str]
    slots: Ids
    serials: NDArray[np.uint64]
    requests: list[Any]


class Tokens:
    """Token columns of the slots, and their histograms. `size` is the smallest block size of the groups."""

    def __init__(self, ledger: Ledger, requests: Requests, scheduler: Any) -> None:
        self._ledger, self._slots, self._requests, self._scheduler = ledger, ledger.slots, requests, scheduler
        self._size = min(group.block_size_tokens for group in ledger.limits.groups)
        self._steps: deque[tuple[Any, Scheduled]] = deque(maxlen=_MOST_IN_FLIGHT)
        self._last = Scheduled([], np.empty(0, np.intp), np.empty(0, np.uint64), [])
        self._measured, self._measured_ns = self._last, 0
        self._speculates = bool(getattr(scheduler, "num_spec_tokens", 0))
        stats, kind = ledger.stats, {"class": RequestClass.DEFAULT.word}
        self._values = stats.values
        self._generated = stats.counter("generation_tokens_total")
        self._last_token = stats.gauge("last_token_ns")
        self._first = stats.histogram("time_to_first_token", **kind)
        self._gap = stats.histogram("inter_token_latency", **kind)

    def scheduled(self, output: Any) -> None:
        """A step was scheduled: copy what its requests have computed, in flight included."""
        if not output.num_scheduled_tokens:
            return
        step = self._step_of(output)
        self._steps.append((output, step))
        self._copy_computed(step.slots, step.requests)

    def _step_of(self, output: Any) -> Scheduled:
        ids = list(output.num_scheduled_tokens)
        last, slots = self._last, self._slots
        if ids == last.ids and (slots.serial[last.slots] == last.serials).all():
            return last
        requests = [self._scheduler.requests[request_id] for request_id in ids]
        at = np.array([self._requests.require(request) for request in requests], np.intp)
        self._last = Scheduled(ids, at, slots.serial[at], requests)
        return self._last

    def _copy_computed(self, slots: Ids, requests: list[Any]) -> None:
        computed = np.array([request.num_computed_tokens for request in requests], np.int32)
        self._slots.computed_tokens[slots] = computed
        # Full blocks may be shared from now on; the one that is being filled is the request's own.
        self._slots.own_from_token[slots] = computed - computed % self._size

    def updated(self, output: Any) -> None:
        """A step's output was applied: copy how many tokens its requests have generated, and time the new ones."""
        step = self._take(output)
        if step is None:
            return
        slots, requests = step.slots, step.requests
        live = self._slots.serial[slots] == step.serials
        counts = np.array(_output_tokens(requests), np.int32)
        if not live.all():
            slots, counts = slots[live], counts[live]
            requests = [request for request, there in zip(requests, live.tolist(), strict=True) if there]
        if self._speculates:
            self._copy_running(slots, requests)
        before = self._slots.output_tokens[slots]
        new = counts - before
        if not new.any():
            return
        self._slots.output_tokens[slots] = counts
        if step is self._measured and len(slots) == len(step.ids) and (new == 1).all():
            self._measure_steady(slots)
        else:
            self._measure(slots[new > 0], before[new > 0], new[new > 0])
            self._measured = step if (new > 0).all() else Scheduled([], slots[:0], step.serials[:0], [])
        self._measured_ns = self._ledger.now_ns

    def _copy_running(self, slots: Ids, requests: list[Any]) -> None:
        """Rejected drafts take computed tokens back."""
        rows = [row for row, request in enumerate(requests) if request.status.name == "RUNNING"]
        self._copy_computed(slots[rows], [requests[row] for row in rows])

    def _take(self, output: Any) -> Scheduled | None:
        if not output.num_scheduled_tokens:
            return None
        while self._steps:
            scheduled, step = self._steps.popleft()
            if scheduled is output:
                return step
        return None

    def _measure_steady(self, slots: Ids) -> None:
        """As `_measure` where the same requests had their last tokens together, in the last update."""
        now = self._ledger.now_ns
        self._values[self._generated] += len(slots)
        self._values[self._last_token] = now
        self._gap.observe((now - self._measured_ns) / _NS_PER_SECOND, len(slots))
        self._slots.last_token_ns[slots] = self._ledger.now_value

    def _measure(self, slots: Ids, before: NDArray[np.int32], new: NDArray[np.int32]) -> None:
        view, now = self._slots, self._ledger.now_ns
        self._values[self._generated] += int(new.sum())
        self._values[self._last_token] = now
        for slot in slots[before == 0].tolist():
            self._first_token(slot)
        further = before > 0
        if further.any():
            gaps = (now - view.last_token_ns[slots[further]]) / _NS_PER_SECOND
            together = new[further]
            if (together == 1).all():
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
