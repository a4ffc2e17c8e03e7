"""Giving way to a request of a higher class: whose blocks it takes, if that is enough. Preempts nobody itself.

Owns the sums of what comes back with whom; who may give way and who does are `victims`' choices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvledger.views import F64, I32, I64
from kvledger.writer import Ledger
from kvledger_engine.budgets import Budgets, Standing
from kvledger_engine.kvcache import KvCache
from kvledger_engine.lanes import Lane
from kvledger_engine.room import Room
from kvledger_engine.running import RunningSet
from kvledger_engine.victims import Candidates, Suffices, Tenants, fewest, levels, may_give_way, spare


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a tenant might take, had some given way. `back` F64[candidates, columns] comes back by tenant, with each;
    `promised` F64[candidates] of it had been promised to a prompt and not been taken."""

    standing: Standing
    column: int
    blocks: int
    back: F64
    promised: F64

    def without(self, chosen: I64) -> Standing:
        """The standing without these candidates."""
        sums, now = self.back[chosen].sum(axis=0), self.standing
        return replace(
            now,
            held=now.held - sums,
            available=now.available + float(sums.sum()),
            promised=now.promised - float(self.promised[chosen].sum()),
        )

    def is_below_ceiling(self, chosen: I64) -> bool:
        """Whether the tenant's own ceiling leaves room without them."""
        return self.without(chosen).room(self.column)[0] >= self.blocks

    def is_enough(self, chosen: I64) -> bool:
        """Whether it may take its blocks without them."""
        return self.without(chosen).judge(self.column, self.blocks) is None


class GiveWay:
    """Chooses victims among running sequences."""

    def __init__(self, ledger: Ledger, *, budgets: Budgets, cache: KvCache, room: Room, running: RunningSet) -> None:
        self._slots, self._blocks = ledger.slots, ledger.blocks
        self._budgets, self._cache, self._room, self._running = budgets, cache, room, running

    def victims(self, lane: Lane, blocks: int, running: I32, *, standing: Standing, positions: F64) -> list[int]:
        """The fewest of the `running` slots that make room for `blocks`, in the order of sacrifice; empty if none can.

        First those of the tenant itself that bring it below its ceiling, then whoever makes room in the pool.
        """
        candidates = running[self._may_give_way(lane, running, standing, positions)]
        candidates = candidates[self._room.order(candidates)]
        if not len(candidates):
            return []
        tenants = self._slots.tenant[candidates]
        level = levels(self._slots.request_class[candidates], self._budgets.priority[tenants])
        back, promised = self._comes_back(candidates)
        trial = Trial(standing=standing, column=lane.column, blocks=blocks, back=back, promised=promised)
        chosen = _NOBODY
        if not trial.is_below_ceiling(chosen):
            own = np.flatnonzero(tenants == lane.column)
            chosen = own[fewest(level[own], back[own, lane.column], _among(own, _NOBODY, trial.is_below_ceiling))]
        if not trial.is_enough(chosen):
            rest = np.setdiff1d(np.arange(len(candidates)), chosen)
            gains = back[rest].sum(axis=1)
            chosen = np.append(chosen, rest[fewest(level[rest], gains, _among(rest, chosen, trial.is_enough))])
        found: list[int] = candidates[spare(chosen, trial.is_enough)].tolist() if trial.is_enough(chosen) else []
        return found

    def _may_give_way(self, lane: Lane, slots: I32, standing: Standing, positions: F64) -> I64:
        view, priority = self._slots, self._budgets.priority
        running = Candidates(
            request_class=view.request_class[slots], tenant=view.tenant[slots], preemptions=view.preemptions[slots]
        )
        tenants = Tenants(priority=priority, position=positions, held=standing.held, reserved=standing.reserved)
        return np.flatnonzero(may_give_way(running, tenants, column=lane.column, kind=lane.kind))

    def _comes_back(self, slots: I32) -> tuple[F64, F64]:
        """`Trial`'s back and promised: blocks that nobody else holds, and those a prompt is still to take."""
        held, offsets = self._cache.blocks_of_each(slots)
        columns, rows = len(self._budgets.priority), np.arange(len(slots)).repeat(np.diff(offsets))
        alone = self._blocks.ref_count[held] == 1
        cells = rows[alone] * columns + self._blocks.tenant[held[alone]]
        back = np.bincount(cells, minlength=len(slots) * columns).reshape(len(slots), columns).astype(np.float64)
        partial, promised = self._running.are_partial(slots), np.zeros(len(slots))
        mine = slots[partial]
        promised[partial] = self._cache.blocks_needed(mine, self._running.lengths(mine))
        back[np.arange(len(slots)), self._slots.tenant[slots]] += promised
        return back, promised


_NOBODY: I64 = np.zeros(0, np.int64)


def _among(some: I64, besides: I64, suffices: Suffices) -> Suffices:
    """`suffices`, asked with indices into `some`, of these besides others."""
    return lambda chosen: suffices(np.append(besides, some[chosen]))
