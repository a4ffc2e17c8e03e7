"""The scheduler: which sequences compute how many tokens in the next step, and why all others wait.

Owns the running set and the order of the phases. Blocks are the cache's, waits the queue's, ends the undertaker's; it
computes nothing and knows no clock.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvledger.views import I32
from kvledger.words import Event, FinishReason, PreemptionMode, ReleaseCause, RequestState, WaitCause
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch, Rows, Scoring, ragged_positions
from kvledger_engine.config import EngineConfig
from kvledger_engine.deadlines import Deadlines
from kvledger_engine.ending import Ending
from kvledger_engine.kvcache import KvCache
from kvledger_engine.preemption import order_of_sacrifice
from kvledger_engine.request import RequestTable
from kvledger_engine.waits import WaitQueue

_EMPTY: I32 = np.zeros(0, np.int32)


class Scheduler:
    """Continuous batching over a paged cache. `running` are the slots of the running set in the order of admission."""

    def __init__(
        self,
        config: EngineConfig,
        ledger: Ledger,
        *,
        requests: RequestTable,
        cache: KvCache,
        queue: WaitQueue,
        ending: Ending,
        deadlines: Deadlines,
    ) -> None:
        self._config, self._ledger, self._slots = config, ledger, ledger.slots
        self._requests, self._cache, self._queue, self._ending = requests, cache, queue, ending
        self._deadlines = deadlines
        self.running: I32 = _EMPTY
        self._ordinals: I32 = np.arange(config.max_num_seqs, dtype=np.int32)
        self._turned_away: tuple[int, int] | None = None
        self._values = ledger.stats.values
        self._last_token_gauge = ledger.stats.gauge("last_token_ns")
        self._preemptions = ledger.stats.counter("preemptions_total", mode=PreemptionMode.RECOMPUTE.word)

    def schedule(self) -> Batch | None:
        """Plan a step within an open publication: running sequences first, then room for them, then admission.

        None when nothing can be computed. Sequences that can never go on have ended then.
        """
        self._queue.look()
        wanted = self._continue_running()
        rows = self._make_room(wanted)
        if len(rows.slots):
            self._cache.grow(rows.slots, rows.ends)
        if rows is wanted:
            rows, cause = self._admit(rows)
        else:
            cause = WaitCause.PREEMPTION
        self._queue.blocked_by(cause)
        return self._batch(rows) if len(rows.slots) else None

    def drop_ended(self) -> None:
        """Take everything out of the running set that is not in state RUNNING any more."""
        self.running = self.running[self._slots.state[self.running] == RequestState.RUNNING]

    # -- phase 1: what runs goes on -------------------------------------------------------------------------------

    def _continue_running(self) -> Rows:
        """Decodes first, a token each; what the token budget leaves goes to prefills in the order of admission."""
        ready = self._ready()
        lengths = self._lengths(ready)
        starts = self._slots.computed_tokens[ready]
        wanted = lengths - starts
        if not len(ready) or int(wanted.max()) == 1:
            return Rows(ready, starts, wanted, lengths)
        counts = self._share_out(wanted)
        return Rows(ready, starts, counts, lengths).where(counts > 0)

    def _ready(self) -> I32:
        """The running set without sequences that are yet to be forked."""
        if not self._requests.unforked:
            return self.running
        return self.running[~self._requests.awaits_fork[self.running]]

    def _lengths(self, slots: I32) -> I32:
        return self._slots.prompt_tokens[slots] + self._slots.output_tokens[slots]

    def _share_out(self, wanted: I32) -> I32:
        """Tokens each row gets of the budget. A row that wants one token is a decode, or as good as one."""
        decodes = wanted == 1
        left = self._config.max_num_batched_tokens - int(decodes.sum())
        prefill = np.where(decodes, 0, wanted)
        before = np.cumsum(prefill) - prefill
        return np.where(decodes, 1, np.clip(left - before, 0, prefill)).astype(np.int32)

    # -- phase 2: room for them -----------------------------------------------------------------------------------

    def _is_short(self, rows: Rows) -> bool:
        available = self._cache.pool.available_blocks
        # A row needs a block per block size of its tokens, one for what begins a block, one for a copy.
        if rows.total_tokens // self._config.block_size_tokens + 2 * len(rows.slots) <= available:
            return False
        return int(self._cache.blocks_needed(rows.slots, rows.ends).sum()) > available

    def _make_room(self, rows: Rows) -> Rows:
        """Preempt until the blocks suffice for the rows that remain. Returns `rows` itself if they suffice as it is.

        A sequence that is alone and still short can never go on: blocks have been lost, and it ends.
        """
        if not len(rows.slots) or not self._is_short(rows):
            return rows
        ready = self._ready()
        order = ready[order_of_sacrifice(self._slots.request_class[ready], self._slots.serial[ready])]
        for leader in order[:-1].tolist():
            self._preempt(leader)
            rows = rows.without(np.array([leader], np.int32))
            if not self._is_short(rows):
                return rows
        self._give_up(int(order[-1]))
        return Rows.none()

    def _preempt(self, leader: int) -> None:
        """Take a sequence's blocks; it goes to the front of the queue, with those that are to be forked from it."""
        slots, group = self._slots, self._requests.group(leader)
        before, computed = self._requests.computed_before, int(slots.computed_tokens[leader])
        before[leader] = max(int(before[leader]), computed)
        released = self._cache.release(leader, cause=ReleaseCause.PREEMPTION)
        self._values[self._preemptions] += len(group)
        slots.preemptions[group] = slots.preemptions[group] + 1
        self._requests.move(group, RequestState.PREEMPTED)
        self.drop_ended()
        self._queue.put_back(group)
        for slot in group.tolist():
            self._ledger.event(Event.PREEMPTED, slots.serial.item(slot), blocks=released if slot == leader else 0)

    def _give_up(self, leader: int) -> None:
        """End a sequence, with those to be forked from it, for which the pool has no blocks and never will."""
        group = self._requests.group(leader)
        self._ending.end(group, FinishReason.POOL_EXHAUSTED, release=ReleaseCause.ERROR)
        self.drop_ended()

    # -- phase 3: admission ---------------------------------------------------------------------------------------

    def _admit(self, rows: Rows) -> tuple[Rows, WaitCause]:
        """Admit from the head of the queue until one of them has to wait: its cause is everybody's."""
        admitted: list[tuple[int, int, int, int]] = []
        budget = self._config.max_num_batched_tokens - rows.total_tokens
        cause: WaitCause | None = None
        promised = self._promised() if self._queue.head() is not None else 0
        while cause is None and (group := self._queue.head()) is not None:
            row, cause = self._admit_group(group, budget=budget, promised=promised)
            if row is not None:
                # Only the last row of a step can be a part of a prompt, so nothing more is promised until then.
                admitted.append(row)
                budget -= row[2]
        rows = rows.plus(admitted)
        if admitted and len(rows.slots) == len(self.running):
            # The same slots in the same order: the array itself tells whoever sees it again that nothing has changed.
            rows = replace(rows, slots=self.running)
        return rows, WaitCause.STEP if cause is None else cause

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._config.block_size_tokens)

    def _promised(self) -> int:
        """Blocks that running prefills still need for prompts they were admitted with."""
        ready = self._ready()
        lengths = self._lengths(ready)
        partial = ready[self._slots.computed_tokens[ready] < lengths - 1]
        return int(self._cache.blocks_needed(partial, self._lengths(partial)).sum()) if len(partial) else 0

    def _admit_group(
        self, group: I32, *, budget: int, promised: int
    ) -> tuple[tuple[int, int, int, int] | None, WaitCause | None]:
        """Admit a group if it may be: the row its leader gets, or the cause it waits for. Neither if it ended."""
        if len(self.running) + len(group) > self._config.max_num_seqs:
            return None, WaitCause.BATCH_SLOTS
        if budget <= 0:
            return None, WaitCause.TOKEN_BUDGET
        leader, alone = int(group[0]), not len(self.running)
        tokens, salt = self._requests.sequence(leader), int(self._requests.salts[leader])
        key = (int(self._slots.serial[leader]), self._cache.pool.available_blocks - promised)
        if not alone and self._turned_away == key:
            return None, WaitCause.POOL
        hit = self._cache.match(leader, tokens, salt)
        if not self._config.chunked_prefill and len(tokens) - hit > budget:
            return None, WaitCause.TOKEN_BUDGET
        count = min(budget, len(tokens) - hit)
        spare = promised + self._config.admission_watermark_blocks
        needed = self._blocks_of(len(tokens)) - self._blocks_of(hit) + spare
        if alone or needed <= self._cache.pool.available_blocks:
            taken = self._cache.admit(leader, tokens, salt, count)
            if taken is not None:
                assert taken == hit, f"{hit} tokens matched, {taken} taken over"
                self._start(group, hit)
                return (leader, hit, count, len(tokens)), None
        if alone:
            # Nobody is left to give blocks back: blocks have been lost, and waiting would be for ever.
            self._queue.leave(leader)
            self._give_up(leader)
            return None, None
        self._turned_away = key
        return None, WaitCause.POOL

    def _start(self, group: I32, hit: int) -> None:
        """Move a group whose leader holds its blocks from the queue into the running set."""
        slots, leader = self._slots, int(group[0])
        self._queue.leave(leader)
        self._requests.move(group, RequestState.RUNNING)
        if int(slots.preemptions[leader]) == 0:
            slots.hit_tokens[leader] = hit
            self._deadlines.started(group)
        self.running = np.concatenate((self.running, group))
        self._values[self._last_token_gauge] = self._ledger.now_ns
        for slot in group.tolist():
            self._ledger.event(Event.ADMITTED, slots.serial.item(slot), blocks=self._cache.held_blocks(slot))

    # -- phase 4: the batch ---------------------------------------------------------------------------------------

    def _batch(self, rows: Rows) -> Batch:
        table_blocks, table_offsets = self._cache.tables(rows.slots)
        copy_source, copy_target = self._cache.take_copies()
        entries, sampled = self._samples(rows)
        return Batch(
            block_size_tokens=self._config.block_size_tokens,
            slots=rows.slots,
            starts=rows.starts,
            counts=rows.counts,
            tokens=self._inputs(rows),
            table_blocks=table_blocks,
            table_offsets=table_offsets,
            copy_source=copy_source,
            copy_target=copy_target,
            sample_entry=entries,
            sample_slots=sampled,
            sample_seed=self._requests.seeds[sampled],
            sample_temperature=self._requests.temperatures[sampled],
            sample_top_p=self._requests.top_ps[sampled] if self._requests.cut else None,
            scores=Scoring.wanted(self._requests.logprobs[sampled]) if self._requests.scored else None,
        )

    def _inputs(self, rows: Rows) -> I32:
        store = self._requests.tokens
        if rows.total_tokens == len(rows.slots):
            return store[rows.slots, rows.starts]
        return store[np.repeat(rows.slots, rows.counts), ragged_positions(rows.starts, rows.counts)]

    def _samples(self, rows: Rows) -> tuple[I32, I32]:
        """(row, slot) of every sample. Sequences about to be forked draw their first token from their leader's row."""
        complete: NDArray[np.bool_] = rows.ends == rows.lengths
        if complete.all():
            entries, sampled = self._ordinals[: len(complete)], rows.slots
        else:
            entries = np.flatnonzero(complete).astype(np.int32)
            sampled = rows.slots[entries]
        if not self._requests.unforked:
            return entries, sampled
        rest = np.concatenate(list(self._requests.unforked.values()))
        entry_of = np.full(self._config.request_slots, -1, np.int32)
        entry_of[sampled] = entries
        leading = entry_of[self._requests.leaders[rest]]
        drawn = leading >= 0
        return np.concatenate((entries, leading[drawn])), np.concatenate((sampled, rest[drawn]))
