"""The rolling scan that proves the mirror: every block's own words against the ledger's, a few blocks a publication.

Whatever differs was changed by a way no hook sees. It is handed to the mirror, counted and logged; never ignored.
"""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_vllm.freelist import FreeList

# vLLM shows what is logged below its own name, and nothing else.
logger = logging.getLogger("vllm.kvledger")

ROUND_SECONDS = 10.0
MOST_BLOCKS = 256
_FEWEST_SHARE = 16
_NS_PER_SECOND = 1e9
_LOGGED = 10
_CACHED = int(BlockState.CACHED)


class RollingScan:
    """Goes round the pool once in `ROUND_SECONDS`, a stretch of at most `MOST_BLOCKS` blocks at a time.

    Not before a sixteenth of the pool is due, if that is less: one stretch costs little more than one block.
    """

    def __init__(self, ledger: Ledger, pool: Any, free: FreeList) -> None:
        self._ledger, self._blocks, self._free = ledger, pool.blocks, free
        self._next, self._since_ns = 1, ledger.now_ns
        self._fewest = max(1, min(MOST_BLOCKS, len(pool.blocks) // _FEWEST_SHARE))
        self._rest_ns = math.ceil(self._fewest / len(pool.blocks) * ROUND_SECONDS * _NS_PER_SECOND)
        self.due_ns = self._since_ns + self._rest_ns
        """Ledger clock from which on there is a stretch to look at."""
        self._corrected, self._logged = CONTROL_INDEX["mirror_corrections"], 0

    def differing(self) -> list[Any]:
        """Blocks of the next stretch whose count, place, or being cached is not what the ledger says."""
        now = self._ledger.now_ns
        due = (now - self._since_ns) / _NS_PER_SECOND / ROUND_SECONDS * len(self._blocks)
        count = max(self._fewest, min(int(due), MOST_BLOCKS))
        self._since_ns, self.due_ns = now, now + self._rest_ns
        start = self._next
        part = self._blocks[start : start + count]
        self._next = start + count if start + count < len(self._blocks) else 1
        wrong = self._wrong(part, slice(start - 1, start - 1 + len(part)))
        return self._note([part[row] for row in wrong]) if wrong else []

    def _wrong(self, part: list[Any], rows: slice) -> list[int]:
        """Which of the ledger's `rows` differ from `part`: of each one number, four times its count and its place."""
        said = np.array([b.ref_cnt * 4 + (b.next_free_block is not None and _place(b)) for b in part], np.int32)
        blocks = self._ledger.blocks
        mine = blocks.ref_count[rows] * 4 + np.where(blocks.state[rows] == _CACHED, 2, self._free.listed(rows))
        differs = said != mine
        return np.flatnonzero(differs).tolist() if differs.any() else []

    def _note(self, blocks: list[Any]) -> list[Any]:
        self._ledger.control[self._corrected] += len(blocks)
        if self._logged < _LOGGED:
            self._logged += 1
            logger.warning(
                "%d block(s) changed by no way it hooks, first vLLM block %d: ledger corrected",
                len(blocks),
                blocks[0].block_id,
            )
        return blocks


def _place(block: Any) -> int:
    """Of a block in vLLM's free queue: 2 if it can be found by its content, else 1. One that is held is not found."""
    return 2 if block.ref_cnt < 1 and block.block_hash is not None else 1
