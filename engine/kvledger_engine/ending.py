"""The end of sequences: blocks given back, end and release recorded, slot emptied. The only way out of the engine.

Owns nothing. Whoever calls it has taken the sequence out of the wait queue, and takes it out of the running set after.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import SUMMARY
from kvledger.views import I32
from kvledger.words import CancelCause, Event, FinishReason, ReleaseCause, RequestState, TokenKind
from kvledger.writer import Ledger
from kvledger_engine.evict import Ids
from kvledger_engine.kvcache import KvCache
from kvledger_engine.messages import Finished, Token
from kvledger_engine.request import RequestTable

_NS_PER_SECOND = 1e9
_COPIED = (
    "serial", "parent_serial", "id_hash", "arrived_ns", "first_block_ns", "first_token_ns", "block_seconds",
    "wait_seconds", "prompt_tokens", "output_tokens", "hit_tokens", "peak_blocks", "preemptions", "tenant",
    "finish_reason", "cancel_cause", "request_class", "id_head", "id_tail",
)  # fmt: skip


class Ending:
    """Ends sequences and tells their clients. `outbox` holds what the loop has yet to hand out."""

    def __init__(self, ledger: Ledger, requests: RequestTable, cache: KvCache) -> None:
        self._ledger, self._slots, self._requests, self._cache = ledger, ledger.slots, requests, cache
        self.outbox: list[Token | Finished] = []
        self._copied = [(name, getattr(self._slots, name)) for name in _COPIED]
        stats = ledger.stats
        self._values = stats.values
        self._ended = [stats.tenant_counter("requests_total", finish_reason=reason.word) for reason in FinishReason]
        self._cancelled = [stats.counter("cancellations_total", cause=cause.word) for cause in CancelCause]
        self._duration = [stats.histogram("request_duration", finish_reason=reason.word) for reason in FinishReason]
        self._release = [stats.histogram("release", cause=cause.word) for cause in ReleaseCause]
        self._peak = stats.histogram("request_peak_blocks")
        self._prompt = stats.histogram("request_tokens", kind=TokenKind.PROMPT.word)
        self._generation = stats.histogram("request_tokens", kind=TokenKind.GENERATION.word)

    def end(
        self,
        group: I32,
        reason: FinishReason,
        *,
        release: ReleaseCause,
        cancel: CancelCause | None = None,
        since_ns: int | None = None,
    ) -> None:
        """End the sequences of slots `group`. `since_ns` is when the end was asked for; None = now."""
        slots, now_ns = self._slots, self._ledger.now_ns
        at = group.astype(np.intp)
        serials = slots.serial[at]
        self._requests.move(group, RequestState.FINISHING)
        slots.finish_reason[at] = reason
        slots.finishing_ns[at] = now_ns
        if cancel is not None:
            slots.cancel_cause[at] = cancel + 1
            self._values[self._cancelled[cancel]] += len(group)
            self._ledger.events(Event.CANCELLED, serials, detail=cancel)
        held = slots.table_blocks[at].sum(axis=1)
        self._ledger.events(Event.FINISHED, serials, blocks=held, detail=reason)
        released = self._give_back(group, release, since_ns or now_ns)
        self._ledger.events(Event.RELEASED, serials, blocks=released, detail=release)
        self._observe(at, reason)
        self._ledger.summaries(self._summaries(at, released))
        self._tell(group, reason)
        self._requests.close(group)

    def _give_back(self, group: I32, release: ReleaseCause, since_ns: int) -> I32:
        """Blocks given back by each slot; the time since the end was asked for goes into the histogram."""
        clock, released = self._ledger.clock, np.zeros(len(group), np.int32)
        for row, slot in enumerate(group.tolist()):
            if self._slots.table_blocks[slot].any():
                released[row] = self._cache.release(slot, cause=release)
            self._release[release].observe(max(0, clock.now_ns() - since_ns) / _NS_PER_SECOND)
        return released

    def _observe(self, group: Ids, reason: FinishReason) -> None:
        slots = self._slots
        np.add.at(self._ended[reason], slots.tenant[group], 1)
        seconds = (slots.finishing_ns[group] - slots.arrived_ns[group]) / _NS_PER_SECOND
        self._duration[reason].observe_many(seconds)
        self._peak.observe_many(slots.peak_blocks[group].astype(np.float64))
        self._prompt.observe_many(slots.prompt_tokens[group].astype(np.float64))
        self._generation.observe_many(slots.output_tokens[group].astype(np.float64))

    def _summaries(self, group: Ids, released: I32) -> NDArray[Any]:
        records = np.zeros(len(group), SUMMARY)
        for name, column in self._copied:
            records[name] = column[group]
        records["seq"] = self._ledger.seq
        records["finished_ns"] = self._slots.finishing_ns[group]
        records["released_ns"] = self._ledger.clock.now_ns()
        records["released_blocks"] = released
        return records

    def _tell(self, group: I32, reason: FinishReason) -> None:
        slots, requests = self._slots, self._requests
        for slot in group.tolist():
            self.outbox.append(
                Finished(
                    request_id=requests.request_ids[slot],
                    index=requests.indices[slot],
                    reason=reason.word,
                    prompt_tokens=int(slots.prompt_tokens[slot]),
                    output_tokens=int(slots.output_tokens[slot]),
                    hit_tokens=int(slots.hit_tokens[slot]),
                )
            )
