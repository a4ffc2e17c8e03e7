"""Growth: the further blocks that running slots need, and their taking, copies of shared blocks included.

Owns no state. Cache groups grow together: a slot's tables all reach up to the same token.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger_engine.accounts import Price
from kvledger_engine.compiled import slots as kernels
from kvledger_engine.copies import CopyOnWrite
from kvledger_engine.holdings import Holdings
from kvledger_engine.ids import Integers
from kvledger_engine.memory import CacheMemory
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows


class Growth:
    """How the tables of one ledger's slots grow."""

    def __init__(
        self,
        memory: CacheMemory,
        *,
        pool: BlockPool,
        tables: BlockTables,
        windows: Windows,
        copies: CopyOnWrite,
        holdings: Holdings,
        metering: Metering,
    ) -> None:
        self._size, self._blocks = memory.limits.groups[0].block_size_tokens, memory.ledger.blocks
        self._handle = memory.handle
        self._pool, self._tables, self._windows = pool, tables, windows
        self._copies, self._holdings, self._metering = copies, holdings, metering

    def blocks_needed(self, slots: Integers, tokens_after: Integers) -> I32:
        """Further blocks each slot needs to hold tokens_after tokens, a copy of a shared block included.

        An upper bound: when all holders of a block grow in one call, the last of them needs no copy. Tokens of several
        steps may be asked for: what leaves a window between them is counted once.
        """
        needed, writing = self._missing(_i32(slots), _i32(tokens_after))
        if not self._windows.plain:
            held = self._tables.lengths(self._windows.tables(slots)).reshape(len(slots), -1)
            needed = self._windows.needed(needed, held)
        if writing:
            writes = self._copies.shared_writes(slots, tokens_after)
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

    def _missing(self, slots: I32, tokens_after: I32) -> tuple[I32, int]:
        """Blocks that each slot's tables lack, every one of them; and how many slots would write into shared blocks."""
        missing: I32 = np.empty(len(slots), np.int32)
        writing: int = kernels.lacking(self._handle, slots, tokens_after, missing)
        return missing, writing

    def missing(self, slots: Integers, tokens_after: Integers) -> I32:
        """Blocks that each slot's tables lack, every one of them."""
        return self._missing(_i32(slots), _i32(tokens_after))[0]

    def grow(self, slots: Integers, tokens_after: Integers) -> None:
        """Take blocks so that each of the distinct slots can hold its tokens_after tokens.

        A shared block in which the next token would lie is replaced by a copy, see `KvCache.take_copies`. Raises
        `NotEnoughBlocks` or `ArenaFull`, with nothing taken.
        """
        at, after = _i32(slots), _i32(tokens_after)
        found, blocks, _ = self._holdings.extend(at, after)
        if found == kernels.SHARED_WRITES:
            self._copy(at, after, blocks)

    def _copy(self, slots: I32, tokens_after: I32, further: int) -> None:
        """As `grow`, where shared blocks are about to be written; `further` blocks are lacking beside the copies."""
        writes = self._copies.shared_writes(slots, tokens_after)
        copied = self._copies.copied(writes)
        self._pool.check(further + len(copied))
        self._holdings.extend(slots, tokens_after, copies_made=True)
        copied = self._copies.made(writes, copied)
        targets = self._holdings.take(len(copied), writes.slots[copied], writes.tables[copied] % self._windows.count)
        began_ns = self._metering.now_ns()
        self._copies.own(writes, copied, targets)
        self._metering.accounts.copied(writes.slots[copied])
        self._metering.shared(began_ns, Price.COPY, writes.slots)


def _i32(numbers: Integers) -> I32:
    found: I32 = np.ascontiguousarray(numbers, np.int32)
    return found
