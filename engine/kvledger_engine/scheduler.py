"""The scheduler: which sequences compute how many tokens in the next step, and why all others wait.

Owns the order of the phases and the share of a step's tokens. Blocks are the cache's, waits the queue's, ends the
undertaker's, the running set's members its own; it computes nothing and knows no clock.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.words import RequestClass
from kvledger.writer import Ledger
from kvledger_engine.admitting import Admission, Parts
from kvledger_engine.batch import Batch, Rows, Scoring
from kvledger_engine.budgets import Budgets
from kvledger_engine.config import EngineConfig
from kvledger_engine.deadlines import Deadlines
from kvledger_engine.ending import Ending
from kvledger_engine.fairshare import FairShare
from kvledger_engine.kvcache import KvCache
from kvledger_engine.request import RequestTable
from kvledger_engine.room import Room
from kvledger_engine.running import RunningSet
from kvledger_engine.sharing import SharedAdmission
from kvledger_engine.waits import WaitQueue


class Scheduler:
    """Continuous batching over a paged cache, for all alike or, where the configuration has quotas, within them."""

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
        self._requests, self._cache, self._queue = requests, cache, queue
        quotas = config.quotas
        budgets = None if quotas is None else Budgets(config, quotas, ledger)
        fair = None if budgets is None else FairShare(ledger, budgets)
        self._running = RunningSet(ledger, requests, None if fair is None else fair.ended)
        self._room = Room(
            config,
            ledger,
            running=self._running,
            requests=requests,
            cache=cache,
            queue=queue,
            ending=ending,
            budgets=budgets,
        )
        parts = Parts(
            running=self._running,
            requests=requests,
            cache=cache,
            queue=queue,
            room=self._room,
            deadlines=deadlines,
        )
        self._step_tokens: list[tuple[int, int]] = []
        if quotas is None or budgets is None or fair is None:
            self._admission = Admission(config, ledger, parts)
        else:
            policies = {kind: quotas.policy(kind.word) for kind in RequestClass}
            self._step_tokens = [(kind, p.step_tokens) for kind, p in policies.items() if p.step_tokens is not None]
            self._admission = SharedAdmission(config, ledger, parts, budgets=budgets, fair=fair, policies=policies)
        # A running set that changes is a new array: of the same one the samples are the same, too.
        self._sampled: I32 | None = None
        self._ordinals: I32 = np.arange(config.max_num_seqs, dtype=np.int32)

    @property
    def running(self) -> I32:
        """The slots of the running set, in the order of admission."""
        return self._running.slots

    def schedule(self) -> Batch | None:
        """Plan a step within an open publication: running sequences first, then room for them, then admission.

        None when nothing can be computed. Sequences that can never go on have ended then.
        """
        self._queue.look()
        wanted = self._continue_running()
        rows = self._room.make(wanted)
        if len(rows.slots):
            self._cache.grow(rows.slots, rows.ends)
        rows = self._admission.admit(rows, shut=rows is not wanted)
        return self._batch(rows) if len(rows.slots) else None

    def drop_ended(self) -> None:
        """Take everything out of the running set that has ended or was preempted."""
        self._running.drop_ended()

    def swaps_failed(self) -> None:
        """The step failed: what it was to swap out is lost."""
        self._room.swaps_failed()

    # -- phase 1: what runs goes on -------------------------------------------------------------------------------

    def _continue_running(self) -> Rows:
        """Decodes first, a token each; what the token budget leaves goes to prefills in the order of admission."""
        ready = self._running.ready()
        rows, most, total = self._cache.plan(ready)
        if most <= 1:
            starts, counts, lengths, ends = rows
            return Rows(ready, starts, counts, lengths, ends, total, complete=True)
        counts = self._share_out(ready, rows[1])
        return Rows.of(ready, rows[0], counts, rows[2]).where(counts > 0)

    def _share_out(self, slots: I32, wanted: I32) -> I32:
        """Tokens each row gets of the budget. A row that wants one token is a decode, or as good as one."""
        decodes = wanted == 1
        left = self._config.max_num_batched_tokens - int(decodes.sum())
        prefill = np.where(decodes, 0, wanted)
        for kind, most in self._step_tokens:
            of_class = np.where(self._slots.request_class[slots] == kind, prefill, 0)
            ahead = np.cumsum(of_class) - of_class
            prefill = np.where(of_class > 0, np.clip(most - ahead, 0, of_class), prefill)
        before = np.cumsum(prefill) - prefill
        return np.where(decodes, 1, np.clip(left - before, 0, prefill)).astype(np.int32)

    # -- phase 4: the batch; 2 and 3 are the room's and the admission's ---------------------------------------------

    def _batch(self, rows: Rows) -> Batch:
        inputs, table_blocks, table_offsets = self._cache.lay_out(rows, self._requests.tokens)
        copy_source, copy_target = self._cache.take_copies()
        entries, sampled = self._samples(rows)
        if sampled is not self._sampled:
            self._seeds, self._temperatures = self._requests.seeds[sampled], self._requests.temperatures[sampled]
            self._sampled = sampled
        return Batch(
            block_size_tokens=self._config.block_size_tokens,
            slots=rows.slots,
            starts=rows.starts,
            counts=rows.counts,
            tokens=inputs,
            table_blocks=table_blocks,
            table_offsets=table_offsets,
            copy_source=copy_source,
            copy_target=copy_target,
            groups=self._cache.group_tables(rows.slots),
            sample_entry=entries,
            sample_slots=sampled,
            sample_seed=self._seeds,
            sample_temperature=self._temperatures,
            sample_top_p=self._requests.top_ps[sampled] if self._requests.cut else None,
            host_copies=self._cache.swaps.pending(),
            scores=Scoring.wanted(self._requests.logprobs[sampled]) if self._requests.scored else None,
        )

    def _samples(self, rows: Rows) -> tuple[I32, I32]:
        """(row, slot) of every sample. Sequences about to be forked draw their first token from their leader's row."""
        if rows.complete or (complete := rows.ends == rows.lengths).all():
            entries, sampled = self._ordinals[: len(rows.slots)], rows.slots
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
