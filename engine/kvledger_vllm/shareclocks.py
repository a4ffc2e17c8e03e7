"""Share clocks of mirrored blocks: a block's second split among its holders. Owns `block.share_clock` and its time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.writer import Ledger

Ids = NDArray[np.intp]
F64 = NDArray[np.float64]
_NS_PER_SECOND = 1e9


class ShareClocks:
    """The clocks of all blocks, read and advanced for those that change."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._blocks = ledger, ledger.blocks

    def advance(self, ids: Ids) -> None:
        """Bring the clocks of blocks up to now, by the references that the ledger still shows."""
        self._blocks.share_clock[ids] = self.read(ids)
        self._blocks.share_since_ns[ids] = self._ledger.now_value

    def start(self, ids: Ids) -> None:
        """Blocks are allocated: their clocks begin at 0."""
        self._blocks.share_clock[ids] = 0.0
        self._blocks.share_since_ns[ids] = self._ledger.now_value

    def read(self, ids: Ids) -> F64:
        """Seconds on the clocks of blocks now."""
        references = self._blocks.ref_count[ids]
        seconds = (self._ledger.now_ns - self._blocks.share_since_ns[ids]) / _NS_PER_SECOND
        if references.min(initial=1) < 1:  # nobody holds it: its clock stands
            seconds = np.where(references > 0, seconds, 0.0)
            references = np.maximum(references, 1)
        clocks: F64 = self._blocks.share_clock[ids] + seconds / references
        return clocks
