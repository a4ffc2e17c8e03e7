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
from kvledger_engine.prefixkeys import U64, Integers, block_sums, mix, prefix_keys

TokenStore = I32 | Callable[[Ids, Ids], I32]
"""Tokens by slot: int32[max_requests, length], or f(slots[rows, 1], positions[rows, block_size]) -> int32 likewise."""

NO_BLOCKS: Ids = np.empty(0, np.intp)
_BROKEN = -1
"""Content id of a slot one of whose full blocks is not indexed as its own: no look-up can reach what follows."""
_GROUP = np.uint64(0xE7037ED1A0B428DB)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """Full blocks of a token sequence: tokens int[blocks, block_size], and running sum and key of each."""

    tokens: Integers
    sums: U64
    keys: U64


def group_keys(keys: U64, groups: int, bits: int) -> U64:
    """The keys of the same prefixes in groups 1, 2, …, uint64[groups - 1, n]; `bits` as in `prefix_keys`."""
    numbers = np.arange(1, groups, dtype=np.uint64)[:, None] * _GROUP
    of_groups = mix(keys[None, :] ^ numbers)
    if bits < 64:
        of_groups &= np.uint64((1 << bits) - 1)
    of_groups[of_groups == 0] = 1
    return of_groups


class PrefixChains:
    """The chains of all slots over one index. Group 0 is the spine: blocks of other groups hang on its contents.

    `seed` salts the keys, `key_bits` < 64 forces collisions. `trusting`: every block that fills is one request's own.
    """

    def __init__(self, ledger: Ledger, index: PrefixIndex, *, seed: int | None, key_bits: int, trusting: bool) -> None:
        limits = ledger.limits
        self._index, self._serial, self._index_slot = index, ledger.slots.serial, ledger.blocks.index_slot
        self._enabled, self._size = limits.prefix_caching, limits.groups[0].block_size_tokens
        self._groups = len(limits.groups)
        # A replay under a virtual clock must give the same ledger.
        self._seed = seed if seed is not None else 0 if ledger.clock.virtual else secrets.randbits(64)
        self._key_bits, self._trusting = key_bits, trusting
        self._within = np.arange(self._size)
        self._sum = np.zeros(limits.max_requests, np.uint64)
        self._content = np.zeros(limits.max_requests, np.int64)
        self._looked_up: tuple[tuple[int, int, int], _Prefix] | None = None

    # -- look-up --------------------------------------------------------------------------------------------------

    def match(self, slot: int, tokens: I32, salt: int) -> Ids:
        """Blocks of group 0 of the longest indexed prefix that leaves at least one of `tokens` to compute."""
        if not self._enabled or len(tokens) <= self._size:
            return NO_BLOCKS
        prefix = self._cut(slot, tokens, salt)
        return self._index.chain(prefix.keys, prefix.tokens, salt)

    def root(self, slot: int, tokens: I32, salt: int) -> int:
        """The key of the first block of `tokens`; 0 where it could not be looked up."""
        if not self._enabled or len(tokens) <= self._size:
            return 0
        return int(self._cut(slot, tokens, salt).keys[0])

    def beside(self, slot: int, hits: Ids, tokens: I32, salt: int) -> Ids:
        """The blocks of all groups that hold what `hits` hold, [len(hits), groups], -1 where a group has none."""
        if self._groups == 1 or not len(hits):
            return hits.reshape(-1, 1).repeat(self._groups, axis=1)
        prefix, others = self._cut(slot, tokens, salt), self._groups - 1
        keys = group_keys(prefix.keys[: len(hits)], self._groups, self._key_bits).reshape(-1)
        found = self._index.find(
            keys,
            np.tile(prefix.tokens[: len(hits)], (others, 1)),
            np.full(len(keys), salt, np.uint64),
            np.tile(self._index.contents_of(hits), others),
        )
        return np.column_stack((hits, found.reshape(others, -1).T))

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
            self._content[slot] = self._index.contents_of(hits[-1:])[0]
        else:
            self._sum[slot], self._content[slot] = 0, ROOT

    def fork(self, source: int, target: int) -> None:
        """The target's chain goes on where the source's stands."""
        self._sum[target], self._content[target] = self._sum[source], self._content[source]

    def rejoin(self, slot: int, blocks: Ids, tokens: I32, salt: int) -> Ids:
        """Index again what was brought back: `blocks` are the slot's full ones, in order; all stamped.

        Only the first run of blocks that are not indexed is, after the indexed one before it. Returns which are now.
        """
        missing = (self._index_slot[blocks] < 0).nonzero()[0]
        if not self._enabled or not len(missing):
            return NO_BLOCKS
        before = self._sum[slot], self._content[slot]
        first = int(missing[0])
        indexed_after = (self._index_slot[blocks[first:]] >= 0).nonzero()[0]
        end = first + int(indexed_after[0]) if len(indexed_after) else len(blocks)
        self.begin(slot, blocks[:first], tokens, salt)
        indexes = np.arange(first, end)
        at, salts = np.full(len(indexes), slot), np.full(len(indexes), salt, np.uint64)
        rows = self.publish(at, indexes, blocks[indexes], lambda _, positions: tokens[positions], salts)
        if end < len(blocks):
            self._sum[slot], self._content[slot] = before
        return indexes[rows]

    def publish(self, slots: Ids, indexes: Ids, blocks: Ids, tokens: TokenStore, salts: U64) -> Ids:
        """Index stamped blocks that have become full: block indexes[i] of slot slots[i], each slot's in order.

        `blocks` [n], or [n, groups]. Returns the rows of which a block is indexed now; the others hold content that
        other blocks are indexed for.
        """
        if not self._enabled:
            return NO_BLOCKS
        spine = blocks if blocks.ndim == 1 else blocks[:, 0]
        rows = np.arange(len(slots)) if self._trusting else self._reachable(slots, spine)
        slots, indexes, spine, salts = slots[rows], indexes[rows], spine[rows], salts[rows]
        positions = indexes[:, None] * self._size + self._within
        content = tokens(slots[:, None], positions) if callable(tokens) else tokens[slots[:, None], positions]
        starts = _starts(slots)
        sums = self._running_sums(slots, starts, block_sums(content, positions, self._seed))
        keys = prefix_keys(sums, salts, indexes, self._key_bits)
        first = slots[starts]
        indexed, contents = self._index.register(keys, content, salts, spine, starts, self._content[first])
        # Rows of one slot are in order, so the last of them is what stays.
        self._sum[slots], self._content[slots] = sums, contents
        if self._groups > 1 and len(rows):
            # Of rows with one content (two requests filled it in one step) the first hangs its blocks on it.
            once = np.unique(contents, return_index=True)[1]
            beside = self._publish_beside(
                keys[once], content[once], salts[once], blocks[rows[once], 1:], contents[once]
            )
            indexed = np.union1d(indexed, once[beside])
        return rows[indexed]

    def _publish_beside(self, keys: U64, content: Integers, salts: U64, blocks: Ids, parents: Integers) -> Ids:
        """Index the blocks [n, groups - 1] of the other groups; returns the rows of which one is indexed now."""
        others = self._groups - 1
        indexed = self._index.attach(
            group_keys(keys, self._groups, self._key_bits).reshape(-1),
            np.tile(content, (others, 1)),
            np.tile(salts, others),
            blocks.T.reshape(-1),
            np.tile(parents, others),
        )
        return np.unique(indexed % len(keys))

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
