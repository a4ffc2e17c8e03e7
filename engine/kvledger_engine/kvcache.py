"""The block side of the engine as the scheduler sees it: slots in, blocks out, everything vectorised over slots.

Owns how pool, tables, prefix index, copy-on-write and pins act together, and the slots' block fields: computed_tokens,
own_from_token, peak_blocks, first_block_ns, block_seconds, share_base. Everything happens inside the caller's
publication; a call that raises has changed nothing.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvledger.views import I32
from kvledger.words import PreemptedFate, ReleaseCause, RequestClass
from kvledger.writer import Ledger
from kvledger_engine.copies import PendingCopies, must_copy
from kvledger_engine.errors import BadConfig, NotEnoughBlocks
from kvledger_engine.evict import Ids
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.pins import PinTable
from kvledger_engine.pool import BlockPool
from kvledger_engine.prefix import ROOT, PrefixIndex
from kvledger_engine.prefixkeys import U64, Integers, block_sums, prefix_keys
from kvledger_engine.tables import BlockTables

TokenStore = I32 | Callable[[Ids, Ids], I32]
"""Tokens by slot: int32[max_requests, length], or f(slots[r], positions[r, block_size]) -> int32[r, block_size]."""

_CANCELLED = (ReleaseCause.DISCONNECT, ReleaseCause.API)
_NO_BLOCKS = np.empty(0, np.intp)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A token sequence cut into full blocks: keys and running sums, one per block."""

    tokens: Integers
    sums: U64
    keys: U64


class KvCache:
    """Blocks for requests, by slot. `pool` tells how many there are; `pins` is for other declared holders.

    `key_bits` < 64 shortens prefix keys, to force collisions in tests. `hash_seed` seeds the keys; by default it is
    random, and 0 under a virtual clock, so that a replay gives the same ledger.
    """

    def __init__(
        self, ledger: Ledger, *, faults: FaultPlan | None = None, key_bits: int = 64, hash_seed: int | None = None
    ) -> None:
        limits = ledger.limits
        if len(limits.groups) != 1:
            raise BadConfig(f"groups={len(limits.groups)}: this engine keeps one cache group, give it one")
        self.block_size_tokens = limits.groups[0].block_size_tokens
        self._ledger, self._slots, self._blocks, self._faults = ledger, ledger.slots, ledger.blocks, faults
        self._caching, self._key_bits = limits.prefix_caching, key_bits
        self._seed = hash_seed if hash_seed is not None else 0 if ledger.clock.virtual else secrets.randbits(64)
        self._index = PrefixIndex(ledger, block_size_tokens=self.block_size_tokens, faults=faults)
        self.pool = BlockPool(ledger, self._index, faults)
        self.pins = PinTable(ledger, self.pool)
        self._tables = BlockTables(ledger)
        self._copies = PendingCopies(ledger, self.pins)
        # Per slot: key sum of its full blocks, content id of the last of them, and since when it holds blocks.
        self._sum = np.zeros(limits.max_requests, np.uint64)
        self._content = np.zeros(limits.max_requests, np.int64)
        self._attached_ns = np.zeros(limits.max_requests, np.int64)
        self._looked_up: tuple[tuple[int, int, int], _Prefix] | None = None
        self._tick: Callable[[], int] = (lambda: 0) if ledger.clock.virtual else time.perf_counter_ns
        self._bind_stats()

    def _bind_stats(self) -> None:
        stats = self._ledger.stats
        self._values = stats.values
        self._allocation = stats.histogram("allocation")
        self._first_block = [stats.histogram("time_to_first_block", **{"class": c.word}) for c in RequestClass]
        self._lifetime = [stats.histogram("block_reference_lifetime", shared=word) for word in ("false", "true")]
        self._overhead = stats.counter("sharing_overhead_seconds_total")
        self._queried, self._hit = (
            stats.counter("prefix_queried_tokens_total"),
            stats.counter("prefix_hit_tokens_total"),
        )
        self._kept = stats.counter("preempted_blocks_total", fate=PreemptedFate.KEPT.word)
        self._recycled = stats.counter("preempted_blocks_total", fate=PreemptedFate.RECYCLED.word)

    # -- prefix and admission -------------------------------------------------------------------------------------

    def match(self, slot: int, tokens: I32, salt: int) -> int:
        """Tokens of the longest cached prefix of full blocks, fewer than len(tokens). Holds nothing."""
        return len(self._matching(slot, tokens, salt)) * self.block_size_tokens

    def _matching(self, slot: int, tokens: I32, salt: int) -> Ids:
        if not self._caching or len(tokens) <= self.block_size_tokens:
            return _NO_BLOCKS
        began = self._tick()
        prefix = self._cut(slot, tokens, salt)
        blocks = self._index.chain(prefix.keys, prefix.tokens, salt)
        self._count_overhead(began)
        return blocks

    def _cut(self, slot: int, tokens: I32, salt: int) -> _Prefix:
        """Full blocks before the last token; kept for the same request looked up again, as a queue's head is."""
        identity = (int(self._slots.serial[slot]), len(tokens), salt)
        if self._looked_up is None or self._looked_up[0] != identity:
            size = self.block_size_tokens
            count = (len(tokens) - 1) // size
            rows = tokens[: count * size].reshape(count, size)
            sums = np.cumsum(
                block_sums(rows, np.arange(count * size).reshape(count, size), self._seed), dtype=np.uint64
            )
            salts = np.full(count, salt, np.uint64)
            keys = prefix_keys(sums, salts, np.arange(count), self._seed, self._key_bits)
            self._looked_up = identity, _Prefix(rows, sums, keys)
        return self._looked_up[1]

    def admit(self, slot: int, tokens: I32, salt: int, new_tokens: int) -> int | None:
        """Give an empty slot the cached prefix of `tokens` and blocks for `new_tokens` after it.

        Returns the tokens of the prefix, None (and holds nothing) if blocks are short.
        """
        assert self._tables.length(slot) == 0, f"slot {slot} was admitted twice"
        hits = self._matching(slot, tokens, salt)
        hit_tokens = len(hits) * self.block_size_tokens
        further = -(-new_tokens // self.block_size_tokens)
        at, count = np.array([slot]), np.array([len(hits) + further])
        try:
            self.pool.check(further, reserved=int(np.count_nonzero(self._blocks.ref_count[hits] < 1)))
            self._tables.check(at, count)
        except NotEnoughBlocks:
            return None
        self._start(slot, hits, tokens, salt)
        blocks = np.concatenate((hits, self._take(np.repeat(at, further))))
        if len(blocks):
            self._attach(at, count, blocks)
        if self._caching:
            self._values[self._queried] += len(tokens)
            self._values[self._hit] += hit_tokens
        return hit_tokens

    def _start(self, slot: int, hits: Ids, tokens: I32, salt: int) -> None:
        """Set a slot's block fields for a table that begins with the blocks `hits`, and share those."""
        slots = self._slots
        slots.changed_seq[slot] = self._ledger.seq
        began = self._tick()
        if len(hits):
            self.pool.share(hits, int(slots.tenant[slot]))
            self._sum[slot] = self._cut(slot, tokens, salt).sums[len(hits) - 1]
            self._content[slot] = self._index.content_of(int(hits[-1]))
        else:
            self._sum[slot], self._content[slot] = 0, ROOT
        slots.computed_tokens[slot] = slots.own_from_token[slot] = len(hits) * self.block_size_tokens
        slots.share_base[slot] = self.pool.share_clocks(hits).sum()
        self._attached_ns[slot] = self._ledger.now_ns
        self._count_overhead(began)

    # -- growth ---------------------------------------------------------------------------------------------------

    def blocks_needed(self, slots: Integers, tokens_after: Integers) -> I32:
        """Further blocks each slot needs to hold tokens_after tokens, a copy of a shared block included.

        An upper bound: when all holders of a block grow in one call, the last of them needs no copy.
        """
        needed = self._missing(slots, tokens_after)
        rows, _, sources = self._shared_writes(slots, tokens_after)
        needed[rows] += self._blocks.ref_count[sources] >= 2
        return needed.astype(np.int32)

    def _missing(self, slots: Integers, tokens_after: Integers) -> Integers:
        missing: Integers = np.maximum(-(-tokens_after // self.block_size_tokens) - self._tables.lengths(slots), 0)
        return missing

    def _shared_writes(self, slots: Integers, tokens_after: Integers) -> tuple[Ids, Integers, I32]:
        """Rows whose next token falls before own_from_token; table position and block of that write."""
        computed = self._slots.computed_tokens[slots]
        rows = np.flatnonzero((self._slots.own_from_token[slots] > computed) & (tokens_after > computed))
        indexes = computed[rows] // self.block_size_tokens
        return rows, indexes, self._tables.entries(slots[rows], indexes) if len(rows) else np.empty(0, np.int32)

    def grow(self, slots: Integers, tokens_after: Integers) -> None:
        """Take blocks so that each of the distinct slots can hold its tokens_after tokens.

        A shared block in which the next token would lie is replaced by a copy, see `take_copies`. Raises
        `NotEnoughBlocks`, with nothing taken.
        """
        missing = self._missing(slots, tokens_after)
        rows, indexes, sources = self._shared_writes(slots, tokens_after)
        copied = must_copy(sources, self._blocks.ref_count[sources]) if len(rows) else rows
        if self._faults is not None:
            copied = self._skip_copy(copied, sources)
        short = np.flatnonzero(missing)
        if len(short) == 0 and len(rows) == 0:
            return
        growing, counts = slots[short], missing[short]
        self.pool.check(int(counts.sum()) + len(copied))
        self._tables.check(growing, counts)
        blocks = self._take(np.concatenate((np.repeat(growing, counts), slots[rows[copied]])))
        if len(short):
            self._attach(growing, counts, blocks[: len(blocks) - len(copied)])
        if len(rows):
            began = self._tick()
            self._copy(slots[rows[copied]], indexes[copied], sources[copied], blocks[len(blocks) - len(copied) :])
            self._slots.changed_seq[slots[rows]] = self._ledger.seq
            self._slots.own_from_token[slots[rows]] = self._slots.computed_tokens[slots[rows]]
            self._count_overhead(began)

    def _take(self, slots: Integers) -> Ids:
        """One block per entry of `slots`, for that slot's request."""
        if len(slots) == 0:
            return _NO_BLOCKS
        began = self._tick()
        blocks = self.pool.take(self._slots.serial[slots], self._slots.tenant[slots])
        self._allocation.observe((self._tick() - began) / 1e9)
        return blocks.astype(np.intp)

    def _attach(self, slots: Integers, counts: Integers, blocks: Integers) -> None:
        self._tables.append(slots, counts, blocks)
        self._slots.peak_blocks[slots] = np.maximum(self._slots.peak_blocks[slots], self._tables.lengths(slots))
        for slot in slots[self._slots.first_block_ns[slots] == 0].tolist():
            now = self._slots.first_block_ns[slot] = self._ledger.now_ns
            waited = (now - int(self._slots.arrived_ns[slot])) / 1e9
            self._first_block[int(self._slots.request_class[slot])].observe(waited)

    # -- copy-on-write --------------------------------------------------------------------------------------------

    def _copy(self, slots: Integers, indexes: Integers, sources: I32, targets: Integers) -> None:
        if len(slots) == 0:
            return
        self._ledger.stamp(sources)
        # A live request's block-seconds must not jump: what it has had of the source leaves its base, not its sum.
        self._slots.share_base[slots] -= self.pool.share_clocks(sources)
        self._blocks.filled_tokens[targets] = self._slots.computed_tokens[slots] % self.block_size_tokens
        self._copies.add(sources, targets, self._slots.serial[slots])
        self._tables.replace(slots, indexes, targets)
        self.pool.release(sources)

    def _skip_copy(self, copied: Integers, sources: I32) -> Integers:
        assert self._faults is not None
        skipped = self._faults.strikes(FaultKind.MISSING_COPY_ON_WRITE, sources[copied], self._ledger.now_ns)
        return copied if skipped is None else np.delete(copied, skipped)

    def take_copies(self) -> tuple[I32, I32]:
        """(sources, targets) of block copies to be made before this step writes; pinned until `copies_done`."""
        return self._copies.pending()

    def copies_done(self) -> None:
        """The copies of `take_copies` have been made."""
        began = self._tick()
        self._copies.done()
        self._count_overhead(began)

    def fork(self, source: int, target: int) -> None:
        """Give the empty slot `target` the table of `source`, whose computed tokens fill it.

        Whoever writes first into a block both hold gets a copy. Raises `ArenaFull` with nothing changed.
        """
        slots, size = self._slots, self.block_size_tokens
        computed = int(slots.computed_tokens[source])
        blocks = self._tables.blocks_of(source)
        assert self._tables.length(target) == 0, f"slot {target} was forked into while it held blocks"
        assert len(blocks) == -(-computed // size), f"slot {source} has blocks beyond its {computed} computed tokens"
        began = self._tick()
        at, count = np.array([target]), np.array([len(blocks)])
        self._tables.check(at, count)
        slots.changed_seq[[source, target]] = self._ledger.seq
        self.pool.share(blocks)
        slots.computed_tokens[target] = computed
        slots.own_from_token[[source, target]] = len(blocks) * size
        slots.share_base[target] = self.pool.share_clocks(blocks).sum()
        self._sum[target], self._content[target] = self._sum[source], self._content[source]
        self._attached_ns[target] = self._ledger.now_ns
        self._attach(at, count, blocks)
        self._count_overhead(began)

    # -- after the compute ----------------------------------------------------------------------------------------

    def commit(self, slots: Integers, computed_tokens: Integers, tokens: TokenStore, salts: U64) -> None:
        """The keys and values of the first `computed_tokens` tokens of each distinct slot are stored now.

        Blocks that became full enter the prefix index, under the slots' `salts`.
        """
        size = self.block_size_tokens
        before = self._slots.computed_tokens[slots].astype(np.intp)
        after = np.asarray(computed_tokens).astype(np.intp)
        first = before // size
        counts = np.where(after > before, -(-after // size) - first, 0)
        rows = np.repeat(np.arange(len(slots)), counts)
        indexes = first[rows] + np.arange(len(rows)) - (np.cumsum(counts) - counts)[rows]
        blocks = self._tables.entries(slots[rows], indexes).astype(np.intp)
        held = np.minimum(after[rows] - indexes * size, size)
        self._ledger.stamp(blocks)
        self._blocks.filled_tokens[blocks] = held
        full = np.flatnonzero(held == size)
        if len(full):
            self._fill(slots, rows[full], indexes[full], blocks[full], after // size * size)
            if self._caching:
                self._publish(slots, rows[full], indexes[full], blocks[full], tokens, salts)
        self._slots.computed_tokens[slots] = np.maximum(before, after)

    def _fill(self, slots: Integers, rows: Ids, indexes: Ids, blocks: Ids, full_tokens: Integers) -> None:
        filled = np.unique(rows)
        at = slots[filled]
        self._slots.changed_seq[at] = self._ledger.seq
        self._slots.own_from_token[at] = np.maximum(self._slots.own_from_token[at], full_tokens[filled])

    def _publish(self, slots: Integers, rows: Ids, indexes: Ids, blocks: Ids, tokens: TokenStore, salts: U64) -> None:
        """Index full blocks: `rows` (rising) say which slot each block is of."""
        began = self._tick()
        at, size = slots[rows].astype(np.intp), self.block_size_tokens
        positions = indexes[:, None] * size + np.arange(size)
        content = tokens(at, positions) if callable(tokens) else tokens[at[:, None], positions]
        starts = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
        first = at[starts]
        sums = np.cumsum(block_sums(content, positions, self._seed), dtype=np.uint64)
        sequence = np.cumsum(np.concatenate(([0], rows[1:] != rows[:-1])))
        earlier = np.concatenate((np.zeros(1, np.uint64), sums))[starts]
        sums += (self._sum[first] - earlier)[sequence]
        row_salts = np.asarray(salts, np.uint64)[rows]
        keys = prefix_keys(sums, row_salts, indexes, self._seed, self._key_bits)
        ends = np.append(starts[1:], len(rows)) - 1
        self._content[first] = self._index.register(keys, content, row_salts, blocks, starts, self._content[first])
        self._sum[first] = sums[ends]
        self._count_overhead(began)

    # -- release --------------------------------------------------------------------------------------------------

    def release(self, slot: int, *, cause: ReleaseCause) -> int:
        """Give all of a slot's blocks back, its tail first; returns how many. Block-seconds go to the slot."""
        slots = self._slots
        blocks = self._tables.blocks_of(slot)[::-1]
        self._ledger.stamp(blocks)
        slots.changed_seq[slot] = self._ledger.seq
        slots.block_seconds[slot] += self.pool.share_clocks(blocks).sum() - slots.share_base[slot]
        slots.share_base[slot] = 0.0
        slots.computed_tokens[slot] = slots.own_from_token[slot] = 0
        self._observe_lifetimes(slot, blocks)
        self._copies.forget(blocks)
        self._tables.clear(slot)
        if cause is ReleaseCause.PREEMPTION:
            self._count_fate(blocks)
        if self._faults is None or not self._skips_release(blocks, cause):
            self.pool.release(blocks)
        return len(blocks)

    def _skips_release(self, blocks: I32, cause: ReleaseCause) -> bool:
        assert self._faults is not None
        if cause not in _CANCELLED:
            return False
        return self._faults.strikes(FaultKind.SKIPPED_FREE, blocks, self._ledger.now_ns) is not None

    def _observe_lifetimes(self, slot: int, blocks: I32) -> None:
        """A reference began when the slot got the block: with its table if the block is older than that."""
        since = np.maximum(self._blocks.allocated_ns[blocks], self._attached_ns[slot])
        held = (self._ledger.now_ns - since) / 1e9
        shared = self._blocks.ref_count[blocks] >= 2
        shared |= self._blocks.owner[blocks] != self._slots.serial[slot]
        self._lifetime[False].observe_many(held[~shared])
        self._lifetime[True].observe_many(held[shared])

    def _count_fate(self, blocks: I32) -> None:
        kept = np.count_nonzero((self._blocks.index_slot[blocks] >= 0) | (self._blocks.ref_count[blocks] >= 2))
        self._values[self._kept] += kept
        self._values[self._recycled] += len(blocks) - kept

    # -- tables ---------------------------------------------------------------------------------------------------

    def tables(self, slots: Integers) -> tuple[I32, I32]:
        """Block tables of the slots, in order, as (blocks, offsets): table i is blocks[offsets[i]:offsets[i + 1]]."""
        return self._tables.gather(slots)

    def blocks_of(self, slot: int) -> I32:
        """One slot's block table."""
        return self._tables.blocks_of(slot)

    def _count_overhead(self, began: int) -> None:
        self._values[self._overhead] += (self._tick() - began) / 1e9
