"""Prefix chains: what each slot's full blocks add up to, looked up at admission and indexed when they fill.

Owns the running key sum and the last content id of every slot, in private memory; the index owns what is in the ledger.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.evict import Ids
from kvledger_engine.prefix import ROOT, PrefixIndex
from kvledger_engine.prefixkeys import U64, Integers, block_sums, prefix_keys

TokenStore = I32 | Callable[[Ids, Ids], I32]
"""Tokens by slot: int32[max_requests, length], or f(slots[rows, 1], positions[rows, block_size]) -> int32 likewise."""

NO_BLOCKS: Ids = np.empty(0, np.intp)
_BROKEN = -1
"""Content id of a slot one of whose full blocks is not indexed as its own: no look-up can reach what follows."""


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Full blocks of a token sequence: tokens int[blocks, block_size], and running sum and key of each."""

    tokens: Integers
    sums: U64
    keys: U64


class PrefixChains:
    """The chains of all slots over one index.

    `seed` salts the keys, `key_bits` < 64 forces collisions. `trusting`: every block that fills is one request's own.
    """

    def __init__(self, ledger: Ledger, index: PrefixIndex, *, seed: int | None, key_bits: int, trusting: bool) -> None:
        limits = ledger.limits
        self._index, self._serial, self._index_slot = index, ledger.slots.serial, ledger.blocks.index_slot
        self._enabled, self._size = limits.prefix_caching, limits.groups[0].block_size_tokens
        # A replay under a virtual clock must give the same ledger.
        self._seed = seed if seed is not None else 0 if ledger.clock.virtual else secrets.randbits(64)
        self._key_bits, self._trusting = key_bits, trusting
        self._within = np.arange(self._size)
        self._sum = np.zeros(limits.max_requests, np.uint64)
        self._content = np.zeros(limits.max_requests, np.int64)
        self._looked_up: tuple[tuple[int, int, int], _Prefix] | None = None

    # -- look-up --------------------------------------------------------------------------------------------------

    def match(self, slot: int, tokens: I32, salt: int) -> Ids:
        """Blocks of the longest indexed prefix that leaves at least one of `tokens` to compute."""
        if not self._enabled or len(tokens) <= self._size:
            return NO_BLOCKS
        prefix = self._cut(slot, tokens, salt)
        return self._index.chain(prefix.keys, prefix.tokens, salt)

    def _cut(self, slot: int, tokens: I32, salt: int) -> _Prefix:
        """The blocks that may be looked up; kept for the request looked up last, as a queue's head is in every step."""
        identity = (int(self._serial[slot]), len(tokens), salt)
        if self._looked_up is None or self._looked_up[0] != identity:
            count = (len(tokens) - 1) // self._size
            rows = tokens[: count * self._size].reshape(count, self._size)
            positions = np.arange(count * self._size).reshape(count, self._size)
            sums = block_sums(rows, positions, self._seed).cumsum(dtype=np.uint64)
            salts = np.full(count, salt, np.uint64)
            keys = prefix_keys(sums, salts, np.arange(count), self._key_bits)
            self._looked_up = identity, _Prefix(rows, sums, keys)
        return self._looked_up[1]

    # -- the chains of slots --------------------------------------------------------------------------------------

    def begin(self, slot: int, hits: Ids, tokens: I32, salt: int) -> None:
        """The slot's table starts with the blocks `hits`, matched for these tokens."""
        if len(hits):
            self._sum[slot] = self._cut(slot, tokens, salt).sums[len(hits) - 1]
            self._content[slot] = self._index.content_of(int(hits[-1]))
        else:
            self._sum[slot], self._content[slot] = 0, ROOT

    def fork(self, source: int, target: int) -> None:
        """The target's chain goes on where the source's stands."""
        self._sum[target], self._content[target] = self._sum[source], self._content[source]

    def publish(self, slots: Ids, indexes: Ids, blocks: Ids, tokens: TokenStore, salts: U64) -> Ids:
        """Index stamped blocks that have become full: block indexes[i] of slot slots[i], each slot's in order.

        Returns the rows that are indexed now; the others hold content that another block is indexed for.
        """
        if not self._enabled:
            return NO_BLOCKS
        rows = np.arange(len(slots)) if self._trusting else self._reachable(slots, blocks)
        slots, indexes, blocks, salts = slots[rows], indexes[rows], blocks[rows], salts[rows]
        positions = indexes[:, None] * self._size + self._within
        content = tokens(slots[:, None], positions) if callable(tokens) else tokens[slots[:, None], positions]
        starts = _starts(slots)
        sums = self._running_sums(slots, starts, block_sums(content, positions, self._seed))
        keys = prefix_keys(sums, salts, indexes, self._key_bits)
        first = slots[starts]
        indexed, contents = self._index.register(keys, content, salts, blocks, starts, self._content[first])
        # Rows of one slot are in order, so the last of them is what stays.
        self._sum[slots], self._content[slots] = sums, contents
        return rows[indexed]

    def _reachable(self, slots: Ids, blocks: Ids) -> Ids:
        """Rows that a look-up can reach. After a fault two requests may fill one block; only the first can index it."""
        taken = np.ones(len(slots), np.bool_)
        taken[np.unique(blocks, return_index=True)[1]] = False
        taken |= self._index_slot[blocks] >= 0
        self._content[slots[taken]] = _BROKEN
        rows: Ids = (self._content[slots] != _BROKEN).nonzero()[0]
        return rows

    def _running_sums(self, slots: Ids, starts: Ids, sums: U64) -> U64:
        if len(starts) == len(slots):
            return self._sum[slots] + sums
        running = sums.cumsum(dtype=np.uint64)
        before = running[starts] - sums[starts]
        lengths = np.diff(starts, append=len(slots))
        total: U64 = running + (self._sum[slots[starts]] - before).repeat(lengths)
        return total


def _starts(slots: Ids) -> Ids:
    """Where each run of equal slots begins."""
    new = np.empty(len(slots), np.bool_)
    new[:1] = True
    np.not_equal(slots[1:], slots[:-1], out=new[1:])
    starts: Ids = new.nonzero()[0]
    return starts
