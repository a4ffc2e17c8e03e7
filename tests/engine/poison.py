"""A cell model under which whoever reads what nobody may rely on gets another text."""

from __future__ import annotations

import numpy as np

from kvledger.views import I32, Blocks
from kvledger.words import BlockState
from kvledger_engine.batch import Batch
from kvledger_engine.cells import CellModel


class PoisonedCellModel(CellModel):
    """A cell model that fills every cell no sequence may read with garbage before each step.

    `blocks` are the ledger's: free blocks and the unfilled ends of all others hold nothing anyone may rely on.
    """

    def __init__(self, blocks: Blocks, *, block_size_tokens: int, vocab_size: int, swap_blocks: int = 0) -> None:
        super().__init__(
            capacity_blocks=len(blocks.state),
            block_size_tokens=block_size_tokens,
            vocab_size=vocab_size,
            swap_blocks=swap_blocks,
        )
        self._blocks, self._rng = blocks, np.random.default_rng(0)

    def execute(self, batch: Batch) -> I32:
        """See `CellModel.execute`."""
        swaps, nothing = batch.host_copies, np.zeros(0, np.int32)
        brought = nothing if swaps is None else swaps.in_targets
        self.poison(np.concatenate((batch.copy_target, brought)), nothing if swaps is None else swaps.out_sources)
        return super().execute(batch)

    def poison(self, also: I32, saved: I32) -> None:
        """Overwrite free blocks, unfilled ends, and the blocks `also`, whose content a copy must bring.

        What is to be `saved` in this step is left alone, whoever has the blocks now.
        """
        filled = np.where(self._blocks.state == BlockState.FREE, 0, self._blocks.filled_tokens)
        filled[also] = 0
        garbage = self._rng.integers(1, 1 << 63, self.cells.shape, dtype=np.uint64)
        unread = np.arange(self._block_size) >= filled[:, None]
        unread[saved] = False
        self.cells[unread] = garbage[unread]
