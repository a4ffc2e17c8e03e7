"""Share clocks: a block's second split among its holders, without visiting a block that does not change.

Owns `block.share_clock` and `block.share_since_ns`. A clock is the integral of 1/ref_count since the block was
allocated; what a request has had of a block is the difference of two readings.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import F64, I32
from kvledger.writer import Ledger
from kvledger_engine.evict import Ids
from kvledger_engine.prefixkeys import Integers

_NS_PER_SECOND = 1e9
_ZERO: F64 = np.zeros(())


class ShareClocks:
    """The clocks of all blocks of a ledger, on its clock."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._blocks = ledger, ledger.blocks

    def start(self, ids: Ids) -> None:
        """Blocks are allocated: their clocks begin at 0."""
        self._blocks.share_clock[ids] = _ZERO
        self._blocks.share_since_ns[ids] = self._ledger.now_value

    def advance(self, ids: Ids, references: I32) -> F64:
        """Bring clocks up to now, before the `references` that stood since their last change are changed.

        Returns the seconds on them.
        """
        clocks: F64 = self._blocks.share_clock[ids]
        clocks += self._running(ids, references)
        self._blocks.share_clock[ids] = clocks
        self._blocks.share_since_ns[ids] = self._ledger.now_value
        return clocks

    def read(self, blocks: Integers) -> F64:
        """Seconds on the clocks now."""
        ids = blocks.astype(np.intp)
        clocks: F64 = self._blocks.share_clock[ids]
        if len(ids):
            clocks += self._running(ids, self._blocks.ref_count[ids])
        return clocks

    def _running(self, ids: Ids, references: I32) -> F64:
        seconds: F64 = (self._ledger.now_ns - self._blocks.share_since_ns[ids]) / _NS_PER_SECOND
        if references.min(initial=1) > 0:
            seconds /= references
        else:
            seconds /= np.where(references > 0, references, np.inf)
        return seconds
