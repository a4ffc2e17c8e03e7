"""Eviction policies: which cached blocks are passed over when their turn to be recycled comes, and how often.

A policy gives blocks lives; a block that is next and has one spends it and goes to the end of the eviction order, so
that every policy is the least recently used one with exceptions, which age. Owns the lives; moves no block.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kvledger_engine.prefixkeys import Integers

U8 = NDArray[np.uint8]
MOST_USES = 15
"""Uses that count: 15, then 7, 3, 1 and 0 are four lives."""
DEEPEST = np.array([1, 4, 16], np.int32)
"""Blocks of a prompt before which its blocks have three lives, two, and one."""


class Eviction(StrEnum):
    """Which cached block goes first."""

    LRU = "lru"
    LFU = "lfu"
    PREFIX = "prefix"


class Reprieves:
    """No exceptions: the least recently used goes first. Blocks are ids, each given once in a call."""

    def allocated(self, blocks: Integers) -> None:
        """Blocks have a new holder and will have other content."""

    def used(self, blocks: Integers) -> None:
        """A request came to share blocks that hold what it needs."""

    def filled(self, blocks: Integers, depths: Integers) -> None:
        """Blocks are full, each with so many blocks of its sequence before it."""

    def cached(self, blocks: Integers) -> None:
        """Nobody holds blocks any more."""

    def has_life(self, blocks: Integers) -> NDArray[np.bool_]:
        """Which blocks are to be passed over, if their turn has come."""
        return np.zeros(len(blocks), np.bool_)

    def spend(self, blocks: Integers) -> None:
        """Blocks were passed over."""


class _Lives(Reprieves):
    def __init__(self, capacity_blocks: int) -> None:
        self._lives: U8 = np.zeros(capacity_blocks, np.uint8)

    def allocated(self, blocks: Integers) -> None:
        """What was there before has no say."""
        self._lives[blocks] = 0

    def has_life(self, blocks: Integers) -> NDArray[np.bool_]:
        """Those that have a life left."""
        alive: NDArray[np.bool_] = self._lives[blocks] > 0
        return alive


class UseCounts(_Lives):
    """Least frequently used, with age: a block's uses are halved each time that it is passed over."""

    def used(self, blocks: Integers) -> None:
        """One use more, up to MOST_USES."""
        self._lives[blocks] = np.minimum(self._lives[blocks] + 1, MOST_USES)

    def spend(self, blocks: Integers) -> None:
        """Half of the uses are forgotten."""
        self._lives[blocks] >>= 1


class Depths(_Lives):
    """Prefix-aware: the first blocks of sequences, which most others can share, outlive the later ones."""

    def __init__(self, capacity_blocks: int) -> None:
        super().__init__(capacity_blocks)
        self._whole: U8 = np.zeros(capacity_blocks, np.uint8)

    def filled(self, blocks: Integers, depths: Integers) -> None:
        """So many lives by depth."""
        self._whole[blocks] = len(DEEPEST) - np.searchsorted(DEEPEST, depths, side="right")

    def cached(self, blocks: Integers) -> None:
        """All of a block's lives again, since it was of use."""
        self._lives[blocks] = self._whole[blocks]

    def spend(self, blocks: Integers) -> None:
        """One life is gone."""
        self._lives[blocks] -= 1


def reprieves(eviction: Eviction, capacity_blocks: int) -> Reprieves | None:
    """The policy of a pool; None where no block is ever passed over."""
    kinds = {Eviction.LFU: UseCounts, Eviction.PREFIX: Depths}
    return kinds[eviction](capacity_blocks) if eviction in kinds else None
