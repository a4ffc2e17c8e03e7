"""The end of sequences: blocks given back, end and release recorded, slot emptied. The only way out of the engine.

Owns nothing. Whoever calls it has taken the sequence out of the wait queue, and takes it out of the running set after.
"""

from __future__ import annotations

from kvledger.clock import NS_PER_SECOND
from kvledger.views import I32
from kvledger.words import CancelCause, Event, FinishReason, ReleaseCause, RequestState, TokenKind
from kvledger.writer import Ledger
from kvledger_engine.kvcache import KvCache
from kvledger_engine.messages import Finished, Refused, Tokens
from kvledger_engine.request import RequestTable
from kvledger_engine.summaries import Summaries


class Ending:
    """Ends sequences and tells their clients. `outbox` holds what the loop has yet to hand out."""

    def __init__(self, ledger: Ledger, requests: RequestTable, cache: KvCache) -> None:
        self._ledger, self._slots, self._requests, self._cache = ledger, ledger.slots, requests, cache
        self.outbox: list[Tokens | Finished | Refused] = []
        self._summaries = Summaries(ledger)
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
        since_ns = since_ns or self._ledger.now_ns
        self._requests.move(group, RequestState.FINISHING)
        for slot in group.tolist():
            self._mark(slot, reason, cancel)
            released = self._give_back(slot, release, since_ns)
            self._observe(slot, reason)
            self._summaries.write(slot, released)
            self._tell(slot, reason)
        self._requests.close(group)

    def _mark(self, slot: int, reason: FinishReason, cancel: CancelCause | None) -> None:
        slots, serial = self._slots, self._slots.serial.item(slot)
        slots.finish_reason[slot], slots.finishing_ns[slot] = reason, self._ledger.now_ns
        if cancel is not None:
            slots.cancel_cause[slot] = cancel + 1
            self._values[self._cancelled[cancel]] += 1
            self._ledger.event(Event.CANCELLED, serial, detail=cancel)
        self._ledger.event(Event.FINISHED, serial, blocks=self._cache.held_blocks(slot), detail=reason)

    def _give_back(self, slot: int, release: ReleaseCause, since_ns: int) -> int:
        """Blocks given back by the slot; the time since the end was asked for goes into the histogram."""
        self._cache.swaps.forget(slot)
        released = self._cache.release(slot, cause=release) if self._cache.held_blocks(slot) else 0
        self._release[release].observe(max(0, self._ledger.clock.now_ns() - since_ns) / NS_PER_SECOND)
        self._ledger.event(Event.RELEASED, self._slots.serial.item(slot), blocks=released, detail=release)
        return released

    def _observe(self, slot: int, reason: FinishReason) -> None:
        slots = self._slots
        self._ended[reason][slots.tenant.item(slot)] += 1
        self._duration[reason].observe((slots.finishing_ns.item(slot) - slots.arrived_ns.item(slot)) / NS_PER_SECOND)
        self._peak.observe(slots.peak_blocks.item(slot))
        self._prompt.observe(slots.prompt_tokens.item(slot))
        self._generation.observe(slots.output_tokens.item(slot))

    def _tell(self, slot: int, reason: FinishReason) -> None:
        slots, requests = self._slots, self._requests
        self.outbox.append(
            Finished(
                request_id=requests.request_ids[slot],
                index=requests.indices[slot],
                reason=reason.word,
                prompt_tokens=slots.prompt_tokens.item(slot),
                output_tokens=slots.output_tokens.item(slot),
                hit_tokens=slots.hit_tokens.item(slot),
            )
        )
