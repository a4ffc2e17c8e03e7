"""The end of requests: how they ended, what they gave back and when, their summary, and their slot emptied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.layout import SUMMARY, SUMMARY_FIELDS
from kvledger.words import CancelCause, Event, FinishReason, ReleaseCause, RequestState, TokenKind
from kvledger.writer import Ledger
from kvledger_vllm.arrivals import Arrival
from kvledger_vllm.cells import Cells
from kvledger_vllm.requests import Requests

_COLUMNS = {"finished_ns": "finishing_ns"}
_REASONS = {
    "FINISHED_STOPPED": FinishReason.STOP,
    "FINISHED_REPETITION": FinishReason.STOP,
    "FINISHED_LENGTH_CAPPED": FinishReason.LENGTH,
    "FINISHED_IGNORED": FinishReason.LENGTH,
    "FINISHED_ABORTED": FinishReason.CANCELLED,
}
_RELEASES = {
    FinishReason.STOP: ReleaseCause.FINISH,
    FinishReason.LENGTH: ReleaseCause.FINISH,
    FinishReason.ENGINE_ERROR: ReleaseCause.ERROR,
}


class Ending:
    """Ends requests in two parts, since vLLM may keep an ended one's blocks: `ended`, then `released`."""

    def __init__(self, ledger: Ledger, requests: Requests) -> None:
        self._ledger, self._slots, self._requests = ledger, Cells(ledger.slots), requests
        self._told_ns: dict[int, int] = {}
        self._released = (0, 0)
        self._fields = [self._field(name) for name in SUMMARY_FIELDS]
        stats = ledger.stats
        self._values = stats.values
        self._ended = [stats.tenant_counter("requests_total", finish_reason=reason.word) for reason in FinishReason]
        self._cancelled = [stats.counter("cancellations_total", cause=cause.word) for cause in CancelCause]
        self._duration = [stats.histogram("request_duration", finish_reason=reason.word) for reason in FinishReason]
        self._release = [stats.histogram("release", cause=cause.word) for cause in ReleaseCause]
        self._peak = stats.histogram("request_peak_blocks")
        self._prompt = stats.histogram("request_tokens", kind=TokenKind.PROMPT.word)
        self._generation = stats.histogram("request_tokens", kind=TokenKind.GENERATION.word)

    def ended(self, slot: int, status: str, *, told_ns: int, by_engine: bool, held_blocks: int) -> None:
        """A request ended and may still hold blocks. vLLM does not say who cancelled: a client, unless all were."""
        slots, serial = self._slots, self._slots.serial[slot]
        reason = _REASONS.get(status, FinishReason.ENGINE_ERROR)
        self._requests.move(slot, RequestState.FINISHING)
        slots.finish_reason[slot], slots.finishing_ns[slot] = reason, self._ledger.now_ns
        self._told_ns[slot] = told_ns
        if reason is FinishReason.CANCELLED:
            cause = CancelCause.API if by_engine else CancelCause.DISCONNECT
            slots.cancel_cause[slot] = cause + 1
            self._values[self._cancelled[cause]] += 1
            self._ledger.event(Event.CANCELLED, serial, detail=cause)
        self._ledger.event(Event.FINISHED, serial, blocks=held_blocks, detail=reason)

    def ended_standing(self, arrival: Arrival, status: str, *, by_engine: bool) -> None:
        """A request ended that never had a slot: it held nothing, and is counted."""
        reason = _REASONS.get(status, FinishReason.ENGINE_ERROR)
        if reason is FinishReason.CANCELLED:
            self._values[self._cancelled[CancelCause.API if by_engine else CancelCause.DISCONNECT]] += 1
        self._ended[reason][self._ledger.tenant_column(arrival.tenant)] += 1

    def released(self, request_id: str, slot: int, *, at_ns: int, blocks: int) -> None:
        """An ended request gave back its last blocks: everything about it is recorded and its slot is free."""
        slots, serial = self._slots, self._slots.serial[slot]
        reason = FinishReason(slots.finish_reason[slot])
        cause = self._release_cause(slot, reason)
        told_ns = self._told_ns.pop(slot, at_ns)
        self._release[cause].observe(max(0, at_ns - told_ns) / NS_PER_SECOND)
        self._ledger.event(Event.RELEASED, serial, blocks=blocks, detail=cause)
        self._ended[reason][slots.tenant[slot]] += 1
        self._duration[reason].observe((slots.finishing_ns[slot] - slots.arrived_ns[slot]) / NS_PER_SECOND)
        self._peak.observe(slots.peak_blocks[slot])
        self._prompt.observe(slots.prompt_tokens[slot])
        self._generation.observe(slots.output_tokens[slot])
        self._released = (at_ns, blocks)
        self._ledger.summary(tuple(field(slot) for field in self._fields))
        self._requests.leave(request_id)

    def _release_cause(self, slot: int, reason: FinishReason) -> ReleaseCause:
        if reason is not FinishReason.CANCELLED:
            return _RELEASES[reason]
        by_engine = self._slots.cancel_cause[slot] == CancelCause.API + 1
        return ReleaseCause.API if by_engine else ReleaseCause.DISCONNECT

    def _field(self, name: str) -> Callable[[int], Any]:
        """What reads a summary's field from a request slot."""
        special: dict[str, Callable[[int], Any]] = {
            "seq": lambda _: self._ledger.seq,
            "released_ns": lambda _: self._released[0],
            "released_blocks": lambda _: self._released[1],
        }
        if name in special:
            return special[name]
        column = getattr(self._slots, _COLUMNS.get(name, name), None)
        if column is None:
            nothing = np.zeros((), SUMMARY[name]).tobytes()
            return lambda _: nothing
        if isinstance(column, memoryview):
            return column.__getitem__
        if column.ndim == 1:
            item: Callable[[int], Any] = column.item
            return item
        return lambda slot: column[slot].tobytes()
