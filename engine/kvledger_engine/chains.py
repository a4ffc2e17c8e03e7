"""Prefix chains: what each slot's full blocks add up to, looked up at admission and indexed when they fill.

Owns the running key sum and the last content id of every slot, in private memory; the index owns what is in the ledger.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32, U64
from kvledger_engine.compiled import chains as kernels
from kvledger_engine.compiled.arrays import INDEX_CHANGES
from kvledger_engine.ids import Ids, ids
from kvledger_engine.memory import CacheMemory

NO_BLOCKS: Ids = np.empty(0, np.int64)


class PrefixChains:
    """The chains of all slots over one index. Group 0 is the spine: blocks of other groups hang on its contents."""

    def __init__(self, memory: CacheMemory) -> None:
        limits = memory.limits
        self._handle, self._words, self._serial = memory.handle, memory.arrays.words, memory.ledger.slots.serial
        self._sum, self._content = memory.arrays.chain_sum, memory.arrays.chain_content
        self._content_of, self._index_slot = memory.arrays.content, memory.ledger.blocks.index_slot
        self._enabled, self._size = limits.prefix_caching, limits.groups[0].block_size_tokens
        self._groups = len(limits.groups)
        # Of the request looked up last, as a queue's head is in every step.
        self._looked_up: tuple[int, int, int] | None = None
        self._sums: U64 = np.zeros(0, np.uint64)
        self._keys: U64 = np.zeros(0, np.uint64)
        self._hits: Ids = NO_BLOCKS
        self._salt: U64 = np.zeros(1, np.uint64)
        self._changes = -1

    # -- look-up --------------------------------------------------------------------------------------------------

    def match(self, slot: int, tokens: I32, salt: int) -> Ids:
        """Blocks of group 0 of the longest indexed prefix that leaves at least one of `tokens` to compute."""
        count = self._looked_up_blocks(tokens)
        if not count:
            return NO_BLOCKS
        self._hash(slot, tokens, salt, count)
        changes = self._words.item(INDEX_CHANGES)
        if changes != self._changes:
            found: Ids = np.empty(count, np.int64)
            self._hits = found[: kernels.match(self._handle, tokens, self._salt, self._keys, found)]
            self._changes = changes
        return self._hits

    def _looked_up_blocks(self, tokens: I32) -> int:
        return (len(tokens) - 1) // self._size if self._enabled else 0

    def root(self, slot: int, tokens: I32, salt: int) -> int:
        """The key of the first block of `tokens`; 0 where it could not be looked up."""
        count = self._looked_up_blocks(tokens)
        if not count:
            return 0
        self._hash(slot, tokens, salt, count)
        return self._keys.item(0)

    def beside(self, slot: int, hits: Ids, tokens: I32, salt: int) -> Ids:
        """The blocks of all groups that hold what `hits` hold, [len(hits), groups], -1 where a group has none."""
        beside: Ids = np.empty((len(hits), self._groups), np.int64)
        beside[:, 0] = hits
        if len(hits) and self._groups > 1:
            self._hash(slot, tokens, salt, self._looked_up_blocks(tokens))
            kernels.match_beside(self._handle, tokens, self._salt, self._keys, beside)
        return beside

    def _hash(self, slot: int, tokens: I32, salt: int, count: int) -> None:
        """Sums and keys of the blocks that may be looked up; kept for the request looked up last."""
        identity = self._serial.item(slot), len(tokens), salt
        if self._looked_up == identity:
            return
        self._salt[0] = salt
        self._sums, self._keys = np.empty(count, np.uint64), np.empty(count, np.uint64)
        kernels.hash_blocks(self._handle, tokens, self._salt, self._sums, self._keys)
        self._looked_up, self._changes = identity, -1

    # -- the chains of slots --------------------------------------------------------------------------------------

    def begin(self, slot: int, hits: Ids, tokens: I32, salt: int) -> None:
        """The slot's table starts with the blocks `hits`, matched for these tokens."""
        if len(hits):
            self._hash(slot, tokens, salt, self._looked_up_blocks(tokens))
            self._sum[slot] = self._sums[len(hits) - 1]
            self._content[slot] = self._content_of[hits[-1]]
        else:
            self._sum[slot], self._content[slot] = 0, kernels.ROOT

    def fork(self, source: int, target: int) -> None:
        """The target's chain goes on where the source's stands."""
        self._sum[target], self._content[target] = self._sum[source], self._content[source]

    def rejoin(self, slot: int, blocks: Ids, tokens: I32, salts: U64) -> None:
        """Index again what was brought back: `blocks` are the slot's full ones, in order; all stamped.

        Only the first run of blocks that are not indexed is, after the indexed one before it. `tokens` I32[slots,
        length] and `salts` U64[slots] are those of all slots.
        """
        missing = (self._index_slot[blocks] < 0).nonzero()[0]
        if not self._enabled or not len(missing):
            return
        before = self._sum[slot], self._content[slot]
        first = int(missing[0])
        indexed_after = (self._index_slot[blocks[first:]] >= 0).nonzero()[0]
        end = first + int(indexed_after[0]) if len(indexed_after) else len(blocks)
        self.begin(slot, blocks[:first], tokens[slot, : len(blocks) * self._size + 1], salts.item(slot))
        numbers = np.arange(first, end)
        rows = np.column_stack((np.full(len(numbers), slot), numbers, blocks[numbers]))
        self.publish(ids(rows), tokens, salts)
        if end < len(blocks):
            self._sum[slot], self._content[slot] = before

    def publish(self, rows: Ids, tokens: I32, salts: U64) -> None:
        """Index stamped blocks that have become full; see `compiled.chains.publish`."""
        if self._enabled:
            kernels.publish(self._handle, rows, salts, tokens)
