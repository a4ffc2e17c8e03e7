"""Room for what runs: who gives way until the blocks suffice, and what giving way is.

Owns preemption and the end of a sequence that can never go on; the order of sacrifice is `victims`'.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.words import Event, FinishReason, PreemptionMode, ReleaseCause, RequestState
from kvledger.writer import Ledger
from kvledger_engine.batch import Rows
from kvledger_engine.budgets import Budgets
from kvledger_engine.config import EngineConfig
from kvledger_engine.ending import Ending
from kvledger_engine.kvcache import KvCache
from kvledger_engine.request import RequestTable
from kvledger_engine.running import RunningSet
from kvledger_engine.victims import order_of_sacrifice
from kvledger_engine.waits import WaitQueue


class Room:
    """Makes room within the pool and, where there are budgets, within every tenant's own."""

    def __init__(
        self,
        config: EngineConfig,
        ledger: Ledger,
        *,
        running: RunningSet,
        requests: RequestTable,
        cache: KvCache,
        queue: WaitQueue,
        ending: Ending,
        budgets: Budgets | None,
    ) -> None:
        self._config, self._ledger, self._slots = config, ledger, ledger.slots
        self._running, self._requests, self._cache, self._queue = running, requests, cache, queue
        self._ending, self._budgets = ending, budgets
        self._values = ledger.stats.values
        self._preemptions = [ledger.stats.counter("preemptions_total", mode=mode.word) for mode in PreemptionMode]

    def make(self, rows: Rows) -> Rows:
        """Preempt until the blocks suffice for the rows that remain. Returns `rows` itself if they suffice as it is.

        A sequence that is alone and still short can never go on: blocks have been lost, and it ends.
        """
        while len(rows.slots) and (candidates := self._candidates(rows)) is not None:
            leader = int(candidates[self.order(candidates)[0]])
            if len(self._running.ready()) == 1:
                # In a baseline of contiguous runs it may only lie badly: it begins anew, and has the pool to itself.
                self.preempt(leader) if self._cache.restartable(leader) else self.give_up(leader)
                return Rows.none()
            self.preempt(leader)
            rows = rows.without(np.array([leader], np.int32))
        return rows

    def order(self, slots: I32) -> I32:
        """Indices into `slots` of running sequences, the first to give way first."""
        priorities = None if self._budgets is None else self._budgets.priority[self._slots.tenant[slots]]
        order = order_of_sacrifice(self._slots.request_class[slots], self._slots.serial[slots], priorities)
        return order.astype(np.int32)

    def _candidates(self, rows: Rows) -> I32 | None:
        """Sequences one of which must give way before all rows can grow; None if none must."""
        if not self._cache.paged:
            return None if self._cache.fits(rows.slots, rows.ends) else self._running.ready()
        available = self._cache.pool.available_blocks
        # In each group a row needs a block per block size of its tokens, one for what begins a block, one for a copy.
        each = rows.total_tokens // self._config.block_size_tokens + 2 * len(rows.slots)
        most = each * self._cache.windows.count
        if self._budgets is None:
            enough = most <= available or int(self._needed(rows).sum()) <= available
            return None if enough else self._running.ready()
        if self._budgets.has_room_for(most, available):
            return None
        tenants = self._slots.tenant
        over = self._budgets.over(self._budgets.sums(tenants[rows.slots], self._needed(rows)), available)
        if over is None:
            return None
        ready = self._running.ready()
        mine = ready[over[tenants[ready]]]
        # Where blocks were lost, nobody may be beyond its budget and the pool be short all the same.
        return mine if len(mine) else ready

    def _needed(self, rows: Rows) -> I32:
        return self._cache.blocks_needed(rows.slots, rows.ends)

    def preempt(self, leader: int) -> None:
        """Take a sequence's blocks; it goes to the front of its lane, with those that are to be forked from it.

        What its blocks hold is saved where there is room for it, else computed again.
        """
        slots, group = self._slots, self._requests.group(leader)
        before, computed = self._requests.computed_before, int(slots.computed_tokens[leader])
        before[leader] = max(int(before[leader]), computed)
        self._requests.recomputing.add(leader)
        saved = self._cache.swaps.save(leader)
        released = self._cache.release(leader, cause=ReleaseCause.PREEMPTION, saved_blocks=saved)
        mode = PreemptionMode.SWAP if saved else PreemptionMode.RECOMPUTE
        self._values[self._preemptions[mode]] += len(group)
        slots.preemptions[group] = slots.preemptions[group] + 1
        self._requests.move(group, RequestState.SWAPPED if saved else RequestState.PREEMPTED)
        self._running.drop_ended()
        self._queue.put_back(group)
        for slot in group.tolist():
            blocks = released if slot == leader else 0
            self._ledger.event(Event.PREEMPTED, slots.serial.item(slot), blocks=blocks, detail=mode)

    def swaps_failed(self) -> None:
        """The step that was to save some sequences failed: their tokens are to be computed again."""
        for leader in self._cache.swaps.failed():
            self._requests.move(self._requests.group(leader), RequestState.PREEMPTED)

    def give_up(self, leader: int) -> None:
        """End a sequence, with those to be forked from it, for which the pool has no blocks and never will."""
        group = self._requests.group(leader)
        self._ending.end(group, FinishReason.POOL_EXHAUSTED, release=ReleaseCause.ERROR)
        self._running.drop_ended()
