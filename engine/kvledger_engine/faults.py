"""Switchable defects for drills: one wrong turn of the allocator, once, at a chosen opportunity.

Owns what can go wrong and when it did. Where it goes wrong is written at the place that would be buggy; a fault never
stops the engine, since it has to be found from the ledger.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from numpy.typing import NDArray


class FaultKind(StrEnum):
    """The defects that can be switched on."""

    SKIPPED_FREE = "skipped_free"
    """A cancelled request's table is dropped, its references stay."""
    LOST_DECREF = "lost_decref"
    """One decrement of a shared block is lost."""
    DOUBLE_FREE = "double_free"
    """A block is released twice."""
    FREE_LIST_LOSS = "free_list_loss"
    """A released block is not put on the free list."""
    FREE_LIST_DUPLICATE = "free_list_duplicate"
    """A released block is put on the free list twice."""
    MISSING_COPY_ON_WRITE = "missing_copy_on_write"
    """A request writes into a shared block as if it had been copied."""
    STALE_PREFIX_ENTRY = "stale_prefix_entry"
    """An evicted block's entry stays in the prefix index."""


@dataclass(slots=True)
class FaultPlan:
    """One fault: its kind, the opportunity (counted from 0) at which it happens, and afterwards what happened.

    An opportunity is one call with at least one block that could go wrong; `seed` picks among those blocks.
    """

    kind: FaultKind
    after: int = 0
    seed: int = 0
    fired: bool = False
    block: int | None = None
    fired_ns: int | None = None
    _seen: int = field(default=0, repr=False)

    def strikes(self, kind: FaultKind, blocks: NDArray[Any] | Sequence[int], now_ns: int) -> int | None:
        """Position in `blocks` of the one that goes wrong now, None when none does."""
        if kind is not self.kind or self.fired or len(blocks) == 0:
            return None
        if self._seen < self.after:
            self._seen += 1
            return None
        position = random.Random(f"{self.seed}:{self.kind}").randrange(len(blocks))
        self.fired, self.block, self.fired_ns = True, int(blocks[position]), now_ns
        return position
