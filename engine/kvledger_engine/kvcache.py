"""The block side of the engine as the scheduler sees it: slots in, blocks out, everything vectorised over slots.

Owns how pool, tables, prefix chains, copy-on-write, windows, pins and swaps are put together, and how a slot gives its
blocks back; how it comes to them is said in `beginnings`, `growth` and `commits`. Cache groups grow together: a slot
has a table in each, all of them up to the same token. Everything happens inside the caller's publication; a call that
raises has changed nothing.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32, U64
from kvledger.words import ReleaseCause
from kvledger.writer import Ledger
from kvledger_engine.accounts import Price
from kvledger_engine.batch import GroupTables, Rows
from kvledger_engine.beginnings import Beginnings
from kvledger_engine.chains import PrefixChains
from kvledger_engine.commits import Commits
from kvledger_engine.compiled import slots as kernels
from kvledger_engine.compiled import steps
from kvledger_engine.copies import CopyOnWrite
from kvledger_engine.evict import Eviction
from kvledger_engine.faults import FaultPlan
from kvledger_engine.faulty import FaultyPool
from kvledger_engine.growth import Growth
from kvledger_engine.hits import PrefixHits
from kvledger_engine.holdings import Holdings
from kvledger_engine.ids import Integers
from kvledger_engine.memory import CacheMemory
from kvledger_engine.metering import Metering
from kvledger_engine.pins import PinTable
from kvledger_engine.pool import BlockPool
from kvledger_engine.swaps import Swaps
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows


class KvCache:
    """Blocks for requests, by slot. `pool` knows how many there are; `pins` is for other declared holders.

    `swaps` saves the content of preempted slots in `host_blocks` blocks of host memory, 0 = it saves nothing. `faults`
    switches one defect on; `eviction` says which cached block goes first. `hash_seed` salts the prefix keys: by default
    random, and fixed under a virtual clock; `key_bits` < 64 shortens them, to force collisions in tests.
    """

    pool_type = BlockPool
    paged = True
    """Whether any free block is as good as any other; else `fits` says what can grow."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        faults: FaultPlan | None = None,
        key_bits: int = 64,
        hash_seed: int | None = None,
        eviction: Eviction = Eviction.LRU,
        host_blocks: int = 0,
    ) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        self._size = ledger.limits.groups[0].block_size_tokens
        self._memory = memory = CacheMemory(ledger, eviction=eviction, key_bits=key_bits, hash_seed=hash_seed)
        self._handle, self._scratch = memory.handle, memory.arrays.scratch
        self.windows = windows = Windows(ledger.limits, memory.arrays.skipped)
        self.pool = pool = self.pool_type(memory) if faults is None else FaultyPool(memory, faults)
        self.pins = PinTable(ledger, pool)
        self._tables = tables = BlockTables(memory)
        self._laid_out_blocks = 0
        self._copies = copies = CopyOnWrite(ledger, pool, tables, windows, self.pins, faults)
        self._metering = metering = Metering(memory)
        chains = PrefixChains(memory)
        self._holdings = holdings = Holdings(memory, pool=pool, windows=windows, metering=metering)
        self._hits = hits = PrefixHits(ledger, chains=chains, windows=windows, metering=metering)
        self._beginnings = Beginnings(
            ledger,
            pool=pool,
            tables=tables,
            windows=windows,
            chains=chains,
            hits=hits,
            holdings=holdings,
            metering=metering,
        )
        self._growth = Growth(
            memory, pool=pool, tables=tables, windows=windows, copies=copies, holdings=holdings, metering=metering
        )
        self._commits = Commits(memory, pool=pool, tables=tables, windows=windows, chains=chains, metering=metering)
        self.swaps = Swaps(
            ledger,
            host_blocks=host_blocks,
            pool=pool,
            tables=tables,
            windows=windows,
            copies=copies,
            chains=chains,
            holdings=holdings,
            metering=metering,
        )

    # -- beginning ------------------------------------------------------------------------------------------------

    def match(self, slot: int, tokens: I32, salt: int) -> int:
        """Tokens of the longest cached prefix of full blocks, fewer than len(tokens). Holds nothing."""
        return self._hits.match(slot, tokens, salt)

    def match_held(self, slot: int, tokens: I32, salt: int) -> tuple[int, int]:
        """As `match`; and how many of the prefix's blocks nobody holds, for which whoever takes them is charged."""
        return self._hits.match_held(slot, tokens, salt)

    def admit(self, slot: int, tokens: I32, salt: int, new_tokens: int) -> int | None:
        """Give an empty slot the cached prefix of `tokens` and blocks for `new_tokens` after it.

        Returns the tokens of the prefix, None (and holds nothing) if blocks are short.
        """
        return self._beginnings.admit(slot, tokens, salt, new_tokens)

    def fork(self, source: int, target: int) -> None:
        """Give the empty slot `target` the table of `source`, to be shared; see `Beginnings.fork`.

        Raises `ArenaFull` with nothing changed.
        """
        self._beginnings.fork(source, target)

    # -- growth ---------------------------------------------------------------------------------------------------

    def blocks_needed(self, slots: Integers, tokens_after: Integers) -> I32:
        """Further blocks each slot needs to hold tokens_after tokens, copies included; see `Growth.blocks_needed`."""
        return self._growth.blocks_needed(slots, tokens_after)

    def fits(self, slots: Integers, tokens_after: Integers) -> bool:
        """Whether all the slots together can hold their tokens_after tokens now."""
        return self._growth.fits(slots, tokens_after)

    def restartable(self, slot: int) -> bool:
        """Whether a slot that is alone and cannot grow could, had it begun anew. Never so where blocks lie anywhere."""
        return False

    def blocks_beyond(self, hit_tokens: int, tokens: int) -> int:
        """Blocks a sequence that begins with so many cached tokens needs further to hold all of `tokens`."""
        return self._growth.blocks_beyond(hit_tokens, tokens)

    def grow(self, slots: Integers, tokens_after: Integers) -> None:
        """Take blocks so that each of the distinct slots can hold its tokens_after tokens; see `Growth.grow`.

        Raises `NotEnoughBlocks`, with nothing taken.
        """
        self._growth.grow(slots, tokens_after)

    def take_copies(self) -> tuple[I32, I32]:
        """(sources, targets) of block copies to be made before this step writes; pinned until `copies_done`."""
        return self._copies.pending()

    def copies_done(self, seconds: float = 0.0) -> None:
        """The copies of `take_copies` have been made, which took the compute so many seconds."""
        if self._copies.are_pending:
            began_ns, slots = self._metering.now_ns(), self._copies.slots
            self._copies.done()
            self._metering.shared(began_ns, Price.COPY, slots, besides=seconds)

    # -- after the compute ----------------------------------------------------------------------------------------

    def commit(self, slots: Integers, computed_tokens: Integers, tokens: I32, salts: U64) -> None:
        """The first `computed_tokens` tokens of each distinct slot are stored now; see `Commits.commit`."""
        self._commits.commit(slots, computed_tokens, tokens, salts)

    # -- release --------------------------------------------------------------------------------------------------

    def release(self, slot: int, *, cause: ReleaseCause, saved_blocks: int = 0) -> int:
        """Give all of a slot's blocks back, its tail first; returns how many. Block-seconds go to the slot.

        `saved_blocks` of them were saved by `swaps`.
        """
        slots = self._slots
        if self._copies.are_pending:
            self._copies.forget(self.blocks_of(slot))
        count, kept = kernels.vacate(self._handle, slot)
        if cause is ReleaseCause.PREEMPTION:
            self._metering.preempted(count, kept, saved_blocks)
        began_ns = self._metering.now_ns()
        seconds = self.pool.give_back(self._scratch[:count], cause)
        self._metering.given_back(began_ns, slot, count)
        slots.block_seconds[slot] += seconds - slots.share_base.item(slot)
        slots.share_base[slot] = 0.0
        return count

    # -- tables ---------------------------------------------------------------------------------------------------

    def plan(self, slots: I32) -> tuple[I32, int, int]:
        """What is left to compute of the slots: rows of starts, counts, lengths and ends; the most of one; the sum."""
        rows: I32 = np.empty((4, len(slots)), np.int32)
        most, total = steps.plan(self._handle, slots, rows)
        return rows, most, total

    def lay_out(self, rows: Rows, tokens: I32) -> tuple[I32, I32, I32]:
        """The tokens that rows compute, of `tokens` by slot, and their block tables in group 0: (inputs, blocks,
        offsets), where table i is blocks[offsets[i]:offsets[i + 1]]."""
        slots, starts, counts = rows.slots, rows.starts, rows.counts
        inputs: I32 = np.empty(rows.total_tokens, np.int32)
        offsets: I32 = np.empty(len(slots) + 1, np.int32)
        room = -1
        while self._laid_out_blocks > room:
            room = self._laid_out_blocks + len(slots)
            blocks: I32 = np.empty(room, np.int32)
            self._laid_out_blocks = steps.lay_out(self._handle, slots, starts, counts, tokens, inputs, blocks, offsets)
        return inputs, blocks[: self._laid_out_blocks], offsets

    def append(self, slots: I32, drawn: I32, tokens: I32) -> tuple[I32, int]:
        """Append a drawn token to each slot's sequence in `tokens`, now.

        Returns how many each has generated, and how many slots have all they asked for.
        """
        outputs: I32 = np.empty(len(slots), np.int32)
        full = steps.append(self._handle, slots, drawn, tokens, outputs)
        return outputs, full

    def group_tables(self, slots: Integers) -> tuple[GroupTables, ...]:
        """Block tables of the slots in every group; () where there is one group, of full attention."""
        if self.windows.plain:
            return ()
        first, found = slots.astype(np.intp) * self.windows.count, []
        for group, window_tokens in enumerate(self.windows.window_tokens):
            blocks, offsets = self._tables.gather(first + group)
            skipped = self.windows.skipped[first + group]
            sink_tokens = int(self.windows.sink_blocks[group]) * self._size
            tables = GroupTables(
                blocks=blocks,
                offsets=offsets,
                skipped=skipped,
                window_tokens=window_tokens,
                sink_tokens=sink_tokens,
            )
            found.append(tables)
        return tuple(found)

    def held_blocks(self, slot: int) -> int:
        """The length of one slot's tables together."""
        held = self._slots.table_blocks
        return held.item(slot, 0) if self.windows.plain else int(held[slot].sum())

    def blocks_of(self, slot: int) -> I32:
        """One slot's tables, group by group."""
        return self._tables.gather(self.windows.tables(np.array([slot])))[0]

    def blocks_of_each(self, slots: Integers) -> tuple[I32, I32]:
        """The tables of slots, group by group, as (blocks, offsets): slot i's are blocks[offsets[i]:offsets[i + 1]]."""
        blocks, offsets = self._tables.gather(self.windows.tables(slots))
        return blocks, offsets[:: self.windows.count]
