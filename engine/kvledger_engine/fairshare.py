"""Fair share: whose turn it is, by the block-seconds each tenant has had for its weight. Admits nobody.

A position is what a tenant has had, and what it holds for as long as requests last, over its weight. Who was away
comes back at the position of those who stayed: nobody saves up, and nobody owes for what nobody else wanted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.views import F64
from kvledger.writer import Ledger
from kvledger_engine.budgets import Budgets

_SMOOTHING = 1 / 16
"""What one request that ends changes of the expected residence."""


class FairShare:
    """Positions of all tenants, by column; the lowest is next."""

    def __init__(self, ledger: Ledger, budgets: Budgets) -> None:
        self._had = ledger.stats.tenant_counter("block_seconds_total")
        self._weight, self._priority = budgets.weight, budgets.priority
        # Counters outlive engine starts; nobody owes anything for what was before this one.
        self._lift: F64 = -self._had / self._weight
        self._active = np.zeros(len(self._weight), np.bool_)
        self._floor: dict[float, float] = {}
        self._residence_seconds: float | None = None

    def positions(self, held: F64) -> F64:
        """Every tenant's position if it holds `held` F64[columns] blocks."""
        positions: F64 = (self._had + held * (self._residence_seconds or 0.0)) / self._weight + self._lift
        return positions

    def look(self, active: NDArray[np.bool_], held: F64) -> None:
        """A schedule begins: who has requests, waiting or running. Who had none until now begins where the others are.

        Those of another priority are no measure: they may have waited for as long as there were higher ones.
        """
        came = active & ~self._active
        if came.any() or (self._active & ~active).any():
            positions = self.positions(held)
            for priority in np.unique(self._priority[self._active]).tolist():
                peers = self._active & (self._priority == priority)
                self._floor[priority] = max(self._floor.get(priority, 0.0), float(positions[peers].min()))
            floors = np.array([self._floor.get(priority, 0.0) for priority in self._priority[came].tolist()])
            self._lift[came] += np.maximum(floors - positions[came], 0.0)
        self._active = active

    def ended(self, residences_seconds: F64) -> None:
        """Sequences have ended that held blocks for so long."""
        mean = float(residences_seconds.mean())
        if self._residence_seconds is None:
            self._residence_seconds = mean
        part = 1 - (1 - _SMOOTHING) ** len(residences_seconds)
        self._residence_seconds += (mean - self._residence_seconds) * part
