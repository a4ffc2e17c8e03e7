"""Budgets: what each tenant holds of the pool against what it may hold. Answers; takes and gives nothing.

A tenant is charged for a block from the allocation or revival its request made until nobody holds it, whoever shares
it meanwhile: `stats.tenant_blocks`, which the ledger keeps. Owns the tenants' numbers by column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.views import F64, I32
from kvledger.words import WaitCause
from kvledger.writer import Ledger
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadQuotas
from kvledger_engine.quotas import Quotas


@dataclass(slots=True)
class Standing:
    """Who may take how much now, within one schedule; changes only by `take`.

    `held` F64[columns] are blocks charged to each tenant, with those promised to prefills that were admitted;
    `available` blocks can be taken, the `promised` ones left out. What the others have reserved and do not hold
    stays among the available: so a tenant finds all that is reserved for it, at once, without anybody's preemption.
    """

    held: F64
    available: float
    promised: float
    ceiling: F64
    reserved: F64
    watermark: int

    def room(self, column: int) -> tuple[float, float]:
        """Blocks a tenant may take by its own ceiling, and without touching what others have reserved."""
        unheld = np.maximum(self.reserved - self.held, 0.0)
        kept = float(unheld.sum()) - float(unheld[column])
        return float(self.ceiling[column] - self.held[column]), self.available - kept

    def is_within_reserve(self, column: int, blocks: int) -> bool:
        """Whether so many blocks more are all of a tenant's own reservation."""
        return bool(self.held[column] + blocks <= self.reserved[column])

    def judge(self, column: int, blocks: int, *, alone: bool = False) -> WaitCause | None:
        """Why a tenant may not take so many blocks more now; None if it may. `alone`: nobody runs.

        The watermark keeps blocks back for what runs outside of its reservation: nothing is kept from a tenant within
        its own, and nothing is while nobody runs outside.
        """
        own, lent = self.room(column)
        if blocks > own:
            return WaitCause.TENANT_QUOTA
        if self.is_within_reserve(column, blocks):
            # Its own come before what was promised to others; only where blocks were lost are there too few.
            return WaitCause.POOL if blocks > self.available + self.promised else None
        if not alone and (self.held > self.reserved).any():
            lent -= self.watermark
        return WaitCause.POOL if blocks > lent else None

    def take(self, column: int, blocks: float) -> None:
        """A tenant takes blocks, or gives some back where `blocks` is negative."""
        self.held[column] += blocks
        self.available -= blocks


class Budgets:
    """The tenants of one ledger: `reserved`, `ceiling` (inf = none), `weight`, `priority` by column, F64[columns]."""

    def __init__(self, config: EngineConfig, quotas: Quotas, ledger: Ledger) -> None:
        self._blocks, self._watermark = ledger.stats.tenant_blocks, config.admission_watermark_blocks
        columns = ledger.limits.tenant_columns
        self.reserved, self.ceiling, self.weight, self.priority = (np.zeros(columns) for _ in range(4))
        own = {_column(ledger, name): quota for name, quota in quotas.tenants.items()}
        for column in range(columns):
            quota = own.get(column, quotas.default)
            self.reserved[column], self.weight[column] = quota.reserved_blocks, quota.weight
            self.priority[column] = quota.priority
            ceiling = quotas.ceiling_blocks(quota, config.capacity_blocks)
            # The whole pool is no quota: what is beyond it waits for the pool. On the ledger 0 says so.
            self.ceiling[column] = ceiling if ceiling < config.capacity_blocks else np.inf
            ledger.tenants.quota_blocks[column] = ceiling if ceiling < config.capacity_blocks else 0

    @property
    def held(self) -> F64:
        """Blocks charged to each tenant now. A view."""
        return self._blocks

    def standing(self, promised: F64, available: int) -> Standing:
        """Who may take how much when so many blocks are available, of which some are promised to each tenant."""
        return Standing(
            held=self._blocks + promised,
            available=available - float(promised.sum()),
            promised=float(promised.sum()),
            ceiling=self.ceiling,
            reserved=self.reserved,
            watermark=self._watermark,
        )

    def sums(self, columns: NDArray[np.int16], blocks: I32) -> F64:
        """Blocks by tenant, of rows with a tenant's column and a number of blocks each."""
        return np.bincount(columns, weights=blocks, minlength=len(self.ceiling)).astype(np.float64, copy=False)

    def over(self, needed: F64, available: int) -> NDArray[np.bool_] | None:
        """Whose requests must give way if tenants are to take `needed` more blocks; None if nobody's must.

        Those of tenants beyond their ceiling; else, where the blocks are short, of tenants beyond their reservation.
        """
        after = self._blocks + needed
        beyond: NDArray[np.bool_] = (after > self.ceiling) & (needed > 0)
        if beyond.any():
            return beyond
        if float(needed.sum()) + float(np.maximum(self.reserved - after, 0.0).sum()) <= available:
            return None
        outside: NDArray[np.bool_] = after > self.reserved
        return outside

    def has_room_for(self, blocks: int, available: int) -> bool:
        """Whether anybody, whoever it is, could take so many blocks: a cheap answer, which may be no too often."""
        if float((self.ceiling - self._blocks)[self._blocks > 0].min(initial=np.inf)) < blocks:
            return False
        return blocks + float(np.maximum(self.reserved - self._blocks, 0.0).sum()) <= available


def _column(ledger: Ledger, name: str) -> int:
    column = ledger.tenant_column(name)
    if column == ledger.limits.max_tenants:
        raise BadQuotas(f"tenant {name!r}: all {column} tenant columns of the ledger are taken: name fewer tenants")
    return column
