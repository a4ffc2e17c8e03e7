"""What a computed step changes: cached tokens, forks, new tokens, and which sequences are done.

Owns the meaning of a sample. A token is appended and handed out once; one computed again after a preemption is neither.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.views import I32
from kvledger.words import Event, FinishReason, ReleaseCause, RequestClass
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch
from kvledger_engine.ending import Ending
from kvledger_engine.kvcache import KvCache
from kvledger_engine.messages import Scores, Tokens
from kvledger_engine.request import RequestTable
from kvledger_engine.scheduler import Scheduler


class Progress:
    """Applies computed batches, within an open publication."""

    def __init__(
        self, ledger: Ledger, *, requests: RequestTable, cache: KvCache, scheduler: Scheduler, ending: Ending
    ) -> None:
        self._ledger, self._slots, self._requests = ledger, ledger.slots, requests
        self._cache, self._scheduler, self._ending = cache, scheduler, ending
        stats = ledger.stats
        self._values = stats.values
        self._generated = stats.counter("generation_tokens_total")
        self._recomputed = stats.counter("recomputed_tokens_total")
        self._last_token_gauge = stats.gauge("last_token_ns")
        self._first = [stats.histogram("time_to_first_token", **{"class": kind.word}) for kind in RequestClass]
        self._gap = [stats.histogram("inter_token_latency", **{"class": kind.word}) for kind in RequestClass]
        self._sampled: I32 = np.zeros(0, np.int32)
        self._request_ids: list[str] = []
        self._indices: list[int] = []
        self._sampled_ns = 0
        self._gaps: list[tuple[Callable[[float, int], None], int]] = []

    def apply(self, batch: Batch, sampled: I32) -> None:
        """Take over what was computed: `sampled` I32[m], one token per sample of the batch."""
        self._store(batch)
        # A part of a prompt is progress, too, though nobody has a token of it yet.
        self._values[self._last_token_gauge] = self._ledger.now_ns
        if self._requests.unforked:
            self._fork(batch)
        if len(sampled):
            # A running set that changes is a new array: the same one means that everybody's last token came together.
            slots, steady = batch.sample_slots, batch.sample_slots is self._sampled
            self._measure(slots, steady=steady)
            drawn: I32 = np.ascontiguousarray(sampled, np.int32)
            outputs, full = self._cache.append(slots, drawn, self._requests.tokens)
            self._values[self._generated] += len(slots)
            if not steady:
                self._name(slots)
            self._hand_out(batch, drawn)
            if full or self._requests.stop_tokens:
                self._end_done(slots, drawn, outputs)

    def _store(self, batch: Batch) -> None:
        rows, ends = batch.slots, batch.starts + batch.counts
        if self._requests.recomputing:
            again = np.minimum(ends, self._requests.computed_before[rows]) - batch.starts
            self._values[self._recomputed] += int(again[again > 0].sum())
        self._cache.copies_done(batch.copy_time.seconds)
        self._cache.swaps.done(self._requests.tokens, self._requests.salts)
        self._cache.commit(rows, ends, self._requests.tokens, self._requests.salts)

    def _fork(self, batch: Batch) -> None:
        """Give the sequences of a complete prompt their share of its blocks; each then goes its own way."""
        slots, leaders = self._slots, set(batch.sample_slots.tolist())
        for leader in [leader for leader in self._requests.unforked if leader in leaders]:
            rest = self._requests.forked(leader)
            for target in rest.tolist():
                self._cache.fork(leader, target)
                slots.hit_tokens[target] = slots.hit_tokens[leader]
                self._ledger.event(Event.FORKED, slots.serial.item(target), blocks=self._cache.held_blocks(target))

    def _measure(self, slots: I32, *, steady: bool) -> None:
        """Everybody's next token comes now; that of slots which have generated none is the first."""
        now_ns = self._ledger.now_ns
        if steady:
            elapsed = (now_ns - self._sampled_ns) / NS_PER_SECOND
            for observe, count in self._gaps:
                observe(elapsed, count)
        else:
            self._measure_each(slots)
        self._sampled_ns = now_ns

    def _measure_each(self, slots: I32) -> None:
        """As `_measure` for a set that changed: some have their first token, some may have missed the last step."""
        view, now_ns = self._slots, self._ledger.now_ns
        counts, before, outputs = self._by_class(slots), view.last_token_ns[slots], view.output_tokens[slots]
        self._gaps = [(self._gap[kind].observe, count) for kind, count in enumerate(counts) if count]
        fresh = slots[outputs == 0].tolist()
        for slot in fresh:
            counts[self._first_token(slot)] -= 1
        if np.count_nonzero(before == self._sampled_ns) == len(slots) - len(fresh):
            elapsed = (now_ns - self._sampled_ns) / NS_PER_SECOND
            for histogram, count in zip(self._gap, counts, strict=True):
                if count:
                    histogram.observe(elapsed, count)
            return
        going_on = outputs > 0
        kinds, seconds = view.request_class[slots[going_on]], (now_ns - before[going_on]) / NS_PER_SECOND
        for kind, histogram in enumerate(self._gap):
            histogram.observe_many(seconds[kinds == kind])

    def _by_class(self, slots: I32) -> list[int]:
        """How many of the slots are of each class; not looked up where all requests are of one."""
        live = self._requests.live_by_class
        if max(live) == sum(live):
            return [len(slots) if count else 0 for count in live]
        counts: list[int] = np.bincount(self._slots.request_class[slots], minlength=len(live)).tolist()
        return counts

    def _first_token(self, slot: int) -> int:
        """The slot's first token came now. Returns its request class."""
        view, now_ns = self._slots, self._ledger.now_ns
        kind: int = view.request_class.item(slot)
        view.first_token_ns[slot] = now_ns
        self._first[kind].observe((now_ns - view.arrived_ns.item(slot)) / NS_PER_SECOND)
        self._ledger.event(Event.FIRST_TOKEN, view.serial.item(slot), blocks=self._cache.held_blocks(slot))
        return kind

    def _name(self, slots: I32) -> None:
        """Whose samples these are, until others are drawn."""
        ids, indices = self._requests.request_ids, self._requests.indices
        at = slots.tolist()
        self._request_ids, self._indices = [ids[slot] for slot in at], [indices[slot] for slot in at]
        self._sampled = slots

    def _hand_out(self, batch: Batch, drawn: I32) -> None:
        scores = None if batch.scores is None else self._scores(batch)
        self._ending.outbox.append(Tokens(self._request_ids, self._indices, drawn.tolist(), scores))

    def _scores(self, batch: Batch) -> dict[int, Scores]:
        """What the compute said of each sample whose client asked, with as many of the likeliest as it asked for."""
        found = batch.scores
        assert found is not None
        tops = self._requests.logprobs[batch.sample_slots[found.samples]].tolist()
        rows = zip(
            found.samples.tolist(),
            found.logprobs.tolist(),
            found.top_tokens.tolist(),
            found.top_logprobs.tolist(),
            tops,
            strict=True,
        )
        return {row: Scores(logprob, tokens[:top], values[:top]) for row, logprob, tokens, values, top in rows}

    def _end_done(self, slots: I32, sampled: I32, outputs: I32) -> None:
        """End sequences that drew one of their stop tokens or have all the tokens they asked for."""
        full = outputs >= self._slots.max_tokens[slots]
        stopped = self._requests.stop_tokens.drawn(slots, sampled)
        for mask, reason in ((stopped, FinishReason.STOP), (full & ~stopped, FinishReason.LENGTH)):
            if mask.any():
                self._ending.end(slots[mask], reason, release=ReleaseCause.FINISH)
        self._scheduler.drop_ended()
