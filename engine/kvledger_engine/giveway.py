"""Giving way to a request of a higher class: whose blocks it takes, if that is enough. Preempts nobody itself.

It takes them of running requests of a lower class: of its own tenant, of a tenant of lower priority, or of one that has
had more than its fair share and holds more than it has reserved. Whoever has given way GIVES_WAY times is left alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvledger.views import F64, I32
from kvledger.writer import Ledger
from kvledger_engine.budgets import Budgets, Standing
from kvledger_engine.kvcache import KvCache
from kvledger_engine.lanes import Lane
from kvledger_engine.preemption import PRIORITY
from kvledger_engine.room import Room

GIVES_WAY = 2
"""Preemptions after which a sequence gives way to no admission any more, so that it gets done."""


class GiveWay:
    """Chooses victims among running sequences."""

    def __init__(self, ledger: Ledger, *, budgets: Budgets, cache: KvCache, room: Room) -> None:
        self._slots, self._blocks = ledger.slots, ledger.blocks
        self._budgets, self._cache, self._room = budgets, cache, room

    def victims(self, lane: Lane, blocks: int, running: I32, *, standing: Standing, positions: F64) -> list[int]:
        """The fewest of the `running` slots, in the order of sacrifice, that make room for `blocks`; empty if none can.

        The loop ends with the last victim: it looks at no more sequences than could give way.
        """
        candidates = running[self._may_give_way(lane, running, standing, positions)]
        trial, found = replace(standing, held=standing.held.copy()), list[int]()
        for slot in candidates[self._room.order(candidates)].tolist():
            column = self._slots.tenant.item(slot)
            if column != lane.column:
                short_of_its_own = trial.room(lane.column)[0] < blocks
                if short_of_its_own or trial.held[column] <= trial.reserved[column]:
                    continue
            freed = self._freed(slot)
            trial.held -= freed
            trial.available += float(freed.sum())
            found.append(slot)
            if trial.judge(lane.column, blocks) is None:
                return found
        return []

    def _may_give_way(self, lane: Lane, slots: I32, standing: Standing, positions: F64) -> NDArray[np.bool_]:
        view, priority = self._slots, self._budgets.priority
        columns = view.tenant[slots]
        lower = PRIORITY[view.request_class[slots]] < PRIORITY[lane.kind]
        below = priority[columns] < priority[lane.column]
        behind = (priority[columns] == priority[lane.column]) & (positions[columns] > positions[lane.column])
        outside = standing.held[columns] > standing.reserved[columns]
        chosen: NDArray[np.bool_] = lower & (view.preemptions[slots] < GIVES_WAY)
        chosen &= (columns == lane.column) | ((below | behind) & outside)
        return chosen

    def _freed(self, slot: int) -> F64:
        """Blocks by tenant that come back with one sequence: those that nobody else holds."""
        held = self._cache.blocks_of(slot)
        alone = held[self._blocks.ref_count[held] == 1]
        return self._budgets.sums(self._blocks.tenant[alone], np.ones(len(alone), np.int32))
