"""RunPool: the block pool of the contiguous baselines, whose blocks are taken as runs of adjacent ids.

Owns where a run lies; what taking and releasing a block means is `pool`'s. Every look for a run reads the whole pool:
a baseline may be slow, paging is what the engine is for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.words import BlockState
from kvledger_engine.compiled import pool as kernels
from kvledger_engine.ids import Ids
from kvledger_engine.pool import BlockPool

Mask = NDArray[np.bool_]
_FREE = CONTROL_INDEX["free_count"]


def runs_of(free: Mask) -> tuple[Ids, Ids]:
    """First block and length of every run of free blocks, in order."""
    edges = np.diff(free.astype(np.int8), prepend=0, append=0)
    starts: Ids = np.flatnonzero(edges == 1)
    lengths: Ids = np.flatnonzero(edges == -1) - starts
    return starts, lengths


def first_fit(free: Mask, count: int) -> int | None:
    """The first block of the first run of at least `count` free blocks; None = there is none."""
    starts, lengths = runs_of(free)
    fitting = np.flatnonzero(lengths >= count)
    return int(starts[fitting[0]]) if len(fitting) else None


class RunPool(BlockPool):
    """A pool without cached blocks; whoever takes says which."""

    def free(self) -> Mask:
        """Which blocks are free, as a copy."""
        free: Mask = self._blocks.state == BlockState.FREE
        return free

    @property
    def longest_run_blocks(self) -> int:
        """The most blocks that could be taken as one run now."""
        return int(runs_of(self.free())[1].max(initial=0))

    def take_run(self, first: int, count: int, *, owner: np.uint64, tenant: np.int16) -> Ids:
        """Take the free blocks first, first + 1, … for one request, with one reference each."""
        ids: Ids = np.arange(first, first + count)
        self._unlist(ids)
        self._ledger.advance_block_seconds()
        kernels.take_these(self._handle, np.array([owner], np.uint64), np.array([tenant], np.int16), ids)
        return ids

    def _unlist(self, ids: Ids) -> None:
        """Stamp blocks and take them off the free list, whose last entries fill their places."""
        taken = np.zeros(len(self._list), np.bool_)
        taken[ids] = True
        left = self.free_blocks - len(ids)
        listed = self._list[: self.free_blocks].astype(np.intp)
        gaps = np.flatnonzero(taken[listed[:left]])
        movers = listed[left:][~taken[listed[left:]]]
        assert len(gaps) == len(movers), "a block that is not free was taken"
        self._ledger.stamp(np.concatenate((ids, movers)))
        self._list[gaps] = movers
        self._control[_FREE] = left
