"""The block side of the engine as the scheduler sees it: slots in, blocks out, everything vectorised over slots.

Owns how pool, tables, prefix chains, copy-on-write, windows and pins act together, and the slots' block fields:
computed_tokens, own_from_token, peak_blocks, first_block_ns, block_seconds, share_base. Cache groups grow together: a
slot has a table in each, all of them up to the same token. Everything happens inside the
caller's publication; a call that raises has changed nothing.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.words import ReleaseCause
from kvledger.writer import Ledger
from kvledger_engine.accounts import Price
from kvledger_engine.batch import GroupTables
from kvledger_engine.chains import PrefixChains, TokenStore
from kvledger_engine.copies import CopyOnWrite
from kvledger_engine.errors import NotEnoughBlocks
from kvledger_engine.evict import Ids
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.holdings import Holdings
from kvledger_engine.metering import Metering
from kvledger_engine.pins import PinTable
from kvledger_engine.pool import BlockPool
from kvledger_engine.prefix import PrefixIndex
from kvledger_engine.prefixkeys import U64, Integers
from kvledger_engine.reprieves import Eviction, reprieves
from kvledger_engine.swaps import Swaps
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows

_CANCELLED = (ReleaseCause.DISCONNECT, ReleaseCause.API)


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
        self._size = ledger.limits.groups[0].block_size_tokens
        self.windows = Windows(ledger.limits)
        self._ledger, self._slots, self._blocks, self._faults = ledger, ledger.slots, ledger.blocks, faults
        index = PrefixIndex(ledger, block_size_tokens=self._size, faults=faults)
        self._policy = reprieves(eviction, ledger.limits.capacity_blocks)
        self.pool = self.pool_type(ledger, index, faults, self._policy)
        self.pins = PinTable(ledger, self.pool)
        self._tables = BlockTables(ledger)
        self._chains = PrefixChains(ledger, index, seed=hash_seed, key_bits=key_bits, trusting=faults is None)
        self._copies = CopyOnWrite(ledger, self.pool, self._tables, self.windows, self.pins, faults)
        self._metering = Metering(ledger)
        self._holdings = Holdings(
            ledger, pool=self.pool, tables=self._tables, windows=self.windows, metering=self._metering
        )
        self.swaps = Swaps(
            ledger,
            host_blocks=host_blocks,
            pool=self.pool,
            tables=self._tables,
            windows=self.windows,
            copies=self._copies,
            chains=self._chains,
            holdings=self._holdings,
            metering=self._metering,
            policy=self._policy,
        )

    # -- admission ------------------------------------------------------------------------------------------------

    def match(self, slot: int, tokens: I32, salt: int) -> int:
        """Tokens of the longest cached prefix of full blocks, fewer than len(tokens). Holds nothing."""
        return len(self._hits(slot, tokens, salt)) * self._size

    def _hits(self, slot: int, tokens: I32, salt: int) -> Ids:
        """The blocks of every group that hold the longest prefix of which each has its window, [blocks, groups].

        Entries before a group's window may be -1. The time is the prefix's.
        """
        began_ns = self._metering.now_ns()
        self._metering.accounts.enter(slot, self._chains.root(slot, tokens, salt))
        hits = self._usable(slot, tokens, salt)
        self._metering.shared(began_ns, Price.LOOKUP, slot)
        return hits

    def _usable(self, slot: int, tokens: I32, salt: int) -> Ids:
        hits = self._chains.match(slot, tokens, salt)
        if self.windows.plain:
            return hits[:, None]
        beside = self._chains.beside(slot, hits, tokens, salt)
        return beside[: self.windows.longest_usable(beside)]

    def _within(self, hits: Ids) -> list[Ids]:
        """Of the blocks of a prefix, [blocks, groups], those that each group keeps."""
        if self.windows.plain:
            return [hits[:, 0]]
        outside = self.windows.outside(np.array([len(hits) * self._size]))[0]
        numbers = np.arange(len(hits))[:, None] - self.windows.sink_blocks
        kept = (numbers < 0) | (numbers >= outside)
        return [hits[kept[:, group], group] for group in range(self.windows.count)]

    def match_held(self, slot: int, tokens: I32, salt: int) -> tuple[int, int]:
        """As `match`; and how many of the prefix's blocks nobody holds, for which whoever takes them is charged."""
        hits = self._hits(slot, tokens, salt)
        held = np.concatenate(self._within(hits))
        return len(hits) * self._size, int(np.count_nonzero(self._blocks.ref_count[held] < 1))

    def admit(self, slot: int, tokens: I32, salt: int, new_tokens: int) -> int | None:
        """Give an empty slot the cached prefix of `tokens` and blocks for `new_tokens` after it.

        Returns the tokens of the prefix, None (and holds nothing) if blocks are short.
        """
        assert self.held_blocks(slot) == 0, f"slot {slot} was admitted while it held blocks"
        hits = self._hits(slot, tokens, salt)
        within = self._within(hits)
        further, shared = -(-new_tokens // self._size), np.concatenate(within)
        tables = self.windows.tables(np.array([slot]))
        counts = np.array([len(part) + further for part in within])
        try:
            self.pool.check(further * len(within), reserved=int(np.count_nonzero(self._blocks.ref_count[shared] < 1)))
            room = self._tables.check(tables, counts)
        except NotEnoughBlocks:
            return None
        began_ns = self._metering.now_ns()
        self._begin(slot, hits[:, 0], tokens, salt, shared)
        self._metering.shared(began_ns, Price.REFERENCE, slot)
        fresh = np.split(self._holdings.take(np.full(further * len(within), slot), tables.repeat(further)), len(within))
        blocks = [part for pair in zip(within, fresh, strict=True) for part in pair]
        self._holdings.attach(np.array([slot]), tables, counts, np.concatenate(blocks), room)
        if self._ledger.limits.prefix_caching:
            self._metering.count_query(slot, len(tokens), len(hits) * self._size)
        return len(hits) * self._size

    def _begin(self, slot: int, spine: Ids, tokens: I32, salt: int, shared: Ids) -> None:
        """Set the block fields of a slot whose sequence begins with the blocks `spine` of group 0.

        `shared` are the blocks of all groups that its tables begin with: they get a reference.
        """
        slots, at = self._slots, np.array([slot])
        slots.changed_seq[slot] = self._ledger.seq_value
        self.pool.share(shared, int(slots.tenant[slot]))
        self._chains.begin(slot, spine, tokens, salt)
        slots.computed_tokens[slot] = slots.own_from_token[slot] = len(spine) * self._size
        slots.share_base[slot] = self.pool.clocks.read(shared).sum()
        if self.windows.slide:
            self.windows.skipped[self.windows.tables(at)] = self.windows.outside(slots.computed_tokens[at])[0]
        self._metering.attached(slot)

    # -- growth ---------------------------------------------------------------------------------------------------

    def blocks_needed(self, slots: Integers, tokens_after: Integers) -> I32:
        """Further blocks each slot needs to hold tokens_after tokens, a copy of a shared block included.

        An upper bound: when all holders of a block grow in one call, the last of them needs no copy. Tokens of several
        steps may be asked for: what leaves a window between them is counted once.
        """
        needed = self._missing(slots, tokens_after)
        if not self.windows.plain:
            held = self._tables.lengths(self.windows.tables(slots)).reshape(len(slots), -1)
            needed = self.windows.needed(needed, held)
        writes = self._copies.shared_writes(slots, tokens_after)
        if len(writes):
            np.add.at(needed, writes.rows, self._blocks.ref_count[writes.sources] >= 2)
        return needed

    def fits(self, slots: Integers, tokens_after: Integers) -> bool:
        """Whether all the slots together can hold their tokens_after tokens now."""
        return int(self.blocks_needed(slots, tokens_after).sum()) <= self.pool.available_blocks

    def restartable(self, slot: int) -> bool:
        """Whether a slot that is alone and cannot grow could, had it begun anew. Never so where blocks lie anywhere."""
        return False

    def blocks_beyond(self, hit_tokens: int, tokens: int) -> int:
        """Blocks a sequence that begins with so many cached tokens needs further to hold all of `tokens`."""
        if self.windows.plain:
            return -(-tokens // self._size) - -(-hit_tokens // self._size)
        return self.windows.blocks_beyond(hit_tokens, tokens)

    def _missing(self, slots: Integers, tokens_after: Integers) -> I32:
        """Blocks that each slot's tables lack, every one of them."""
        if self.windows.plain:
            held = self._tables.lengths(slots)
        else:
            first = slots * self.windows.count
            held = self._tables.lengths(first) + self.windows.skipped[first]
        missing: Integers = (tokens_after + (self._size - 1)) // self._size - held
        return np.maximum(missing, 0, dtype=np.int32, casting="same_kind")

    def grow(self, slots: Integers, tokens_after: Integers) -> None:
        """Take blocks so that each of the distinct slots can hold its tokens_after tokens.

        A shared block in which the next token would lie is replaced by a copy, see `take_copies`. Raises
        `NotEnoughBlocks`, with nothing taken.
        """
        slots = slots.astype(np.intp)
        missing = self._missing(slots, tokens_after)
        writes = self._copies.shared_writes(slots, tokens_after)
        grown = missing.nonzero()[0]
        if len(grown) == 0 and len(writes) == 0:
            return
        copied = self._copies.copied(writes)
        growing = slots[grown]
        tables, counts = self.windows.tables(growing), self.windows.each(missing[grown])
        self.pool.check(int(counts.sum()) + len(copied))
        room = self._tables.check(tables, counts)
        copied = self._copies.made(writes, copied)
        owners = np.concatenate((self.windows.each(growing).repeat(counts), writes.slots[copied]))
        plain = self.windows.plain
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

    def take_copies(self) -> tuple[I32, I32]:
        """(sources, targets) of block copies to be made before this step writes; pinned until `copies_done`."""
        return self._copies.pending()

    def copies_done(self) -> None:
        """The copies of `take_copies` have been made."""
        if self._copies.are_pending:
            began_ns, slots = self._metering.now_ns(), self._copies.slots
            self._copies.done()
            self._metering.shared(began_ns, Price.COPY, slots)

    def fork(self, source: int, target: int) -> None:
        """Give the empty slot `target` the table of `source`, which must hold no more than its computed tokens need.

        Whoever writes first into a block that both hold gets a copy. Raises `ArenaFull` with nothing changed.
        """
        slots, skipped = self._slots, self.windows.skipped
        computed = int(slots.computed_tokens[source])
        whole = -(-computed // self._size)
        ours, theirs = (self.windows.tables(np.array([slot])) for slot in (source, target))
        counts, blocks = self._tables.lengths(ours), self._tables.gather(ours)[0].astype(np.intp)
        assert self.held_blocks(target) == 0, f"slot {target} was forked into while it held blocks"
        assert (counts + skipped[ours] == whole).all(), f"slot {source} has blocks beyond its {computed} tokens"
        room = self._tables.check(theirs, counts)
        began_ns = self._metering.now_ns()
        slots.changed_seq[[source, target]] = self._ledger.seq_value
        self.pool.share(blocks)
        slots.computed_tokens[target] = computed
        slots.own_from_token[[source, target]] = whole * self._size
        skipped[theirs] = skipped[ours]
        slots.share_base[target] = self.pool.clocks.read(blocks).sum()
        self._chains.fork(source, target)
        self._metering.attached(target)
        self._metering.accounts.follow(source, target)
        self._metering.shared(began_ns, Price.REFERENCE, target)
        self._holdings.attach(np.array([target]), theirs, counts, blocks, room)

    # -- after the compute ----------------------------------------------------------------------------------------

    def commit(self, slots: Integers, computed_tokens: Integers, tokens: TokenStore, salts: U64) -> None:
        """The keys and values of the first `computed_tokens` tokens of each distinct slot are stored now.

        Blocks that became full enter the prefix index under the slots' `salts`; what is indexed may be shared, so it
        lies before own_from_token. Blocks that have left a window are given back.
        """
        slots, after = slots.astype(np.intp), computed_tokens.astype(np.intp)
        first = self._slots.computed_tokens[slots].astype(np.intp) // self._size
        counts = (after - 1) // self._size - first + 1
        rows = np.arange(len(slots)).repeat(counts)
        indexes = first[rows] + np.arange(len(rows)) - (counts.cumsum() - counts)[rows]
        at = slots[rows]
        blocks = self._entries(at, indexes)
        held = np.minimum(after[rows] - indexes * self._size, self._size)
        self._ledger.stamp(blocks.reshape(-1))
        self._blocks.filled_tokens[blocks.reshape(-1)] = self.windows.each(held)
        self._slots.computed_tokens[slots] = after
        full = (held == self._size).nonzero()[0]
        if len(full):
            began_ns = self._metering.now_ns()
            if self._policy is not None:
                self._policy.filled(blocks[full].reshape(-1), self.windows.each(indexes[full]))
            at, indexes = at[full], indexes[full]
            indexed = self._chains.publish(at, indexes, blocks[full], tokens, salts[rows[full]])
            self._disown(at[indexed], (indexes[indexed] + 1) * self._size)
            self._metering.shared(began_ns, Price.INDEX, at)
        if self.windows.slide:
            self._recycle(slots)

    def _entries(self, slots: Ids, indexes: Integers) -> Ids:
        """Block number `indexes` of each slot's sequence: [n], or [n, groups] where there are several."""
        if self.windows.plain:
            return self._tables.entries(slots, indexes).astype(np.intp)
        tables = self.windows.tables(slots)
        entries = self._tables.entries(tables, self.windows.each(indexes) - self.windows.skipped[tables])
        return entries.reshape(-1, self.windows.count).astype(np.intp)

    def _recycle(self, slots: Ids) -> None:
        """Give back what has left the windows of the slots: full blocks, cached if they are indexed, oldest first."""
        tables, skipped = self.windows.tables(slots), self.windows.skipped
        outside = self.windows.outside(self._slots.computed_tokens[slots]).reshape(-1)
        sliding = (outside > skipped[tables]).nonzero()[0]
        if len(sliding) == 0:
            return
        tables, outside = tables[sliding], outside[sliding]
        counts, sinks = outside - skipped[tables], self.windows.sink_blocks[tables % self.windows.count]
        blocks, offsets = self._tables.gather(tables)
        self._ledger.stamp(blocks.astype(np.intp))
        rows = np.arange(len(tables)).repeat(counts)
        first = offsets[:-1] + sinks - (counts.cumsum() - counts)
        gone = blocks[first[rows] + np.arange(len(rows))].astype(np.intp)
        holders = tables[rows] // self.windows.count
        self._metering.recycled(holders, gone)
        self._tables.drop(tables, counts, sinks)
        skipped[tables] = outside
        np.add.at(self._slots.block_seconds, holders, self.pool.clocks.read(gone))
        self.pool.release(gone)

    def _disown(self, slots: Ids, ends: Integers) -> None:
        """What lies before token `ends` may be shared from now on; each slot's rows rise."""
        self._slots.changed_seq[slots] = self._ledger.seq_value
        self._slots.own_from_token[slots] = np.maximum(self._slots.own_from_token[slots], ends)

    # -- release --------------------------------------------------------------------------------------------------

    def release(self, slot: int, *, cause: ReleaseCause, saved_blocks: int = 0) -> int:
        """Give all of a slot's blocks back, its tail first; returns how many. Block-seconds go to the slot.

        `saved_blocks` of them were saved by `swaps`.
        """
        slots, blocks = self._slots, self.blocks_of(slot)[::-1].astype(np.intp)
        tables = self.windows.tables(np.array([slot]))
        self._ledger.stamp(blocks)
        slots.changed_seq[slot] = self._ledger.seq_value
        slots.computed_tokens[slot] = slots.own_from_token[slot] = 0
        self._metering.released(slot, blocks, cause, saved_blocks)
        self._copies.forget(blocks)
        for table in tables.tolist():
            self._tables.clear(table)
        self.windows.skipped[tables] = 0
        skipped = self._faults is not None and self._skips_free(blocks, cause)
        seconds = float(self.pool.clocks.read(blocks).sum()) if skipped else self.pool.release(blocks)
        slots.block_seconds[slot] += seconds - slots.share_base[slot]
        slots.share_base[slot] = 0.0
        return len(blocks)

    def _skips_free(self, blocks: Ids, cause: ReleaseCause) -> bool:
        assert self._faults is not None
        if cause not in _CANCELLED:
            return False
        return self._faults.strikes(FaultKind.SKIPPED_FREE, blocks, self._ledger.now_ns) is not None

    # -- tables ---------------------------------------------------------------------------------------------------

    def tables(self, slots: Integers) -> tuple[I32, I32]:
        """Block tables of the slots in group 0, as (blocks, offsets): table i is blocks[offsets[i]:offsets[i + 1]]."""
        return self._tables.gather(slots.astype(np.intp) * self.windows.count)

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
