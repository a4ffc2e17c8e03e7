"""Host blocks: the numbers of a bounded pool in host memory, who needs each, and which pool block is its twin.

Owns no memory, that is the compute's. A block and its twin hold the same content, bit for bit, until the twin is taken
by somebody else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.views import I32
from kvledger_engine.ids import Integers

_NONE = -1


class HostBlocks:
    """`capacity` host blocks beside a pool of `pool_blocks`. One with no reference is free."""

    def __init__(self, capacity: int, pool_blocks: int) -> None:
        self.capacity = self.free_blocks = capacity
        self._stack: I32 = np.arange(capacity, dtype=np.int32)[::-1].copy()
        self._references: I32 = np.zeros(capacity, np.int32)
        self._whole: NDArray[np.bool_] = np.zeros(capacity, bool)
        self._twin: I32 = np.full(capacity, _NONE, np.int32)
        self._host_of: I32 = np.full(pool_blocks, _NONE, np.int32)

    def references(self, hosts: Integers) -> I32:
        """How many need each block."""
        return self._references[hosts]

    def of(self, blocks: Integers) -> I32:
        """The host block that holds the content of each pool block, -1 where none does."""
        return self._host_of[blocks]

    def twins(self, hosts: Integers) -> I32:
        """The pool block with the content of each, -1 where there is none. Of full blocks only: others are written."""
        twins: I32 = np.where(self._whole[hosts], self._twin[hosts], _NONE)
        return twins

    def take(self, blocks: Integers, whole: NDArray[np.bool_]) -> I32:
        """A host block, with one reference, for the content of each pool block; `whole` says which are full.

        There must be that many free.
        """
        left = self.free_blocks - len(blocks)
        assert left >= 0, f"{len(blocks)} host blocks wanted, {self.free_blocks} free"
        hosts = self._stack[left : self.free_blocks][::-1].copy()
        self.free_blocks = left
        self._references[hosts], self._whole[hosts] = 1, whole
        self.link(hosts, blocks)
        return hosts

    def hold(self, hosts: Integers) -> None:
        """One more reference to each of distinct blocks."""
        self._references[hosts] += 1

    def drop(self, hosts: Integers) -> None:
        """One reference less to each block given; those left without are free."""
        np.subtract.at(self._references, hosts, 1)
        gone = np.unique(hosts[self._references[hosts] == 0])
        self.unlink(gone)
        self._stack[self.free_blocks : self.free_blocks + len(gone)] = gone[::-1]
        self.free_blocks += len(gone)

    # -- twins ----------------------------------------------------------------------------------------------------

    def link(self, hosts: Integers, blocks: Integers) -> None:
        """These pool blocks hold, or are about to, what these host blocks do."""
        self.unlink(hosts)
        self._twin[hosts], self._host_of[blocks] = blocks, hosts

    def unlink(self, hosts: Integers) -> None:
        """These host blocks have no twin any more."""
        twins = self._twin[hosts]
        self._host_of[twins[twins >= 0]] = _NONE
        self._twin[hosts] = _NONE

    def unlink_parts(self, hosts: Integers) -> None:
        """As `unlink`, for those that are not full: their twins may be written from now on."""
        self.unlink(hosts[~self._whole[hosts]])

    def overwritten(self, blocks: Integers) -> None:
        """The content of these pool blocks is lost."""
        hosts = self._host_of[blocks]
        self._twin[hosts[hosts >= 0]] = _NONE
        self._host_of[blocks] = _NONE
