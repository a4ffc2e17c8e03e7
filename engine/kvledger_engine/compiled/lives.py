"""Lives: how often a cached block is passed over when its turn to be recycled comes, by eviction policy.

A block that is next and has a life spends it and goes to the end of the eviction order, so that every policy is the
least recently used one with exceptions, which age.
"""

from __future__ import annotations

from typing import Any

from kvledger.views import U8
from kvledger_engine.compiled.kernel import helper

LRU, LFU, PREFIX = range(3)
"""No lives; least frequently used, with age: a use is a life, halved each time that it is passed over; prefix-aware:
the first blocks of sequences, which most others can share, have up to three, and all of them again after each use."""
MOST_USES = 15
"""Uses that count: 15, then 7, 3, 1 and 0 are four lives."""
_DEEPEST = (1, 4, 16)
"""Blocks of a prompt before which its blocks have three lives, two, and one."""


@helper
def used(policy: int, lives: U8, block: int) -> None:
    """A request came to share a block that holds what it needs."""
    if policy == LFU and lives[block] < MOST_USES:
        lives[block] += 1


@helper
def filled(policy: int, whole_lives: U8, block: int, depth: int) -> None:
    """A block is full, with `depth` blocks of its sequence before it."""
    if policy == PREFIX:
        count = 0
        for deepest in _DEEPEST:
            count += depth < deepest
        whole_lives[block] = count


@helper
def cached(policy: int, lives: U8, whole_lives: U8, block: int) -> None:
    """Nobody holds a block any more."""
    if policy == PREFIX:
        lives[block] = whole_lives[block]


@helper
def spent(policy: int, lives: U8, block: Any) -> bool:
    """Whether a block whose turn has come is passed over, a life less."""
    if lives[block] == 0:
        return False
    lives[block] = lives[block] >> 1 if policy == LFU else lives[block] - 1
    return True
