"""Growth: the further blocks that running slots need, and their taking, copies of shared blocks included.

Owns no state. Cache groups grow together: a slot's tables all reach up to the same token.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.accounts import Price
from kvledger_engine.copies import CopyOnWrite
from kvledger_engine.holdings import Holdings
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.prefixkeys import Integers
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows


class Growth:
    """How the tables of one ledger's slots grow."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        pool: BlockPool,
        tables: BlockTables,
        windows: Windows,
        copies: CopyOnWrite,
        holdings: Holdings,
        metering: Metering,
    ) -> None:
        self._size, self._blocks = ledger.limits.groups[0].block_size_tokens, ledger.blocks
        self._pool, self._tables, self._windows = pool, tables, windows
        self._copies, self._holdings, self._metering = copies, holdings, metering

    def blocks_needed(self, slots: Integers, tokens_after: Integers) -> I32:
        """Further blocks each slot needs to hold tokens_after tokens, a copy of a shared block included.

        An upper bound: when all holders of a block grow in one call, the last of them needs no copy. Tokens of several
        steps may be asked for: what leaves a window between them is counted once.
        """
        needed = self.missing(slots, tokens_after)
        if not self._windows.plain:
            held = self._tables.lengths(self._windows.tables(slots)).reshape(len(slots), -1)
            needed = self._windows.needed(needed, held)
        writes = self._copies.shared_writes(slots, tokens_after)
        if len(writes):
            np.add.at(needed, writes.rows, self._blocks.ref_count[writes.sources] >= 2)
        return needed

    def fits(self, slots: Integers, tokens_after: Integers) -> bool:
        """Whether all the slots together can hold their tokens_after tokens now."""
        return int(self.blocks_needed(slots, tokens_after).sum()) <= self._pool.available_blocks

    def blocks_beyond(self, hit_tokens: int, tokens: int) -> int:
        """Blocks a sequence that begins with so many cached tokens needs further to hold all of `tokens`."""
        if self._windows.plain:
            return -(-tokens // self._size) - -(-hit_tokens // self._size)
        return self._windows.blocks_beyond(hit_tokens, tokens)

    def missing(self, slots: Integers, tokens_after: Integers) -> I32:
        """Blocks that each slot's tables lack, every one of them."""
        if self._windows.plain:
            held = self._tables.lengths(slots)
        else:
            first = slots * self._windows.count
            held = self._tables.lengths(first) + self._windows.skipped[first]
        missing: Integers = (tokens_after + (self._size - 1)) // self._size - held
        return np.maximum(missing, 0, dtype=np.int32, casting="same_kind")

    def grow(self, slots: Integers, tokens_after: Integers) -> None:
        """Take blocks so that each of the distinct slots can hold its tokens_after tokens.

        A shared block in which the next token would lie is replaced by a copy, see `KvCache.take_copies`. Raises
        `NotEnoughBlocks`, with nothing taken.
        """
        slots = slots.astype(np.intp)
        missing = self.missing(slots, tokens_after)
        writes = self._copies.shared_writes(slots, tokens_after)
        grown = missing.nonzero()[0]
        if len(grown) == 0 and len(writes) == 0:
            return
        copied = self._copies.copied(writes)
        growing = slots[grown]
        tables, counts = self._windows.tables(growing), self._windows.each(missing[grown])
        self._pool.check(int(counts.sum()) + len(copied))
        room = self._tables.check(tables, counts)
        copied = self._copies.made(writes, copied)
        owners = np.concatenate((self._windows.each(growing).repeat(counts), writes.slots[copied]))
        plain = self._windows.plain
        blocks = self._holdings.take(
            owners, owners if plain else np.concatenate((tables.repeat(counts), writes.tables[copied]))
        )
        further = len(blocks) - len(copied)
        self._holdings.attach(growing, tables, counts, blocks[:further], room)
        if len(writes):
            began_ns = self._metering.now_ns()
            self._copies.own(writes, copied, blocks[further:])
            self._metering.accounts.copied(writes.slots[copied])
            self._metering.shared(began_ns, Price.COPY, writes.slots)
