"""The block side of the engine as the scheduler sees it: slots in, blocks out, everything vectorised over slots.

Owns how pool, tables, prefix chains, copy-on-write and pins act together, and the slots' block fields:
computed_tokens, own_from_token, peak_blocks, first_block_ns, block_seconds, share_base. Everything happens inside the
caller's publication; a call that raises has changed nothing.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.words import ReleaseCause
from kvledger.writer import Ledger
from kvledger_engine.chains import NO_BLOCKS, PrefixChains, TokenStore
from kvledger_engine.copies import CopyOnWrite
from kvledger_engine.errors import BadConfig, NotEnoughBlocks
from kvledger_engine.evict import Ids
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.metering import Metering
from kvledger_engine.pins import PinTable
from kvledger_engine.pool import BlockPool
from kvledger_engine.prefix import PrefixIndex
from kvledger_engine.prefixkeys import U64, Integers
from kvledger_engine.reprieves import Eviction, reprieves
from kvledger_engine.tables import BlockTables

_CANCELLED = (ReleaseCause.DISCONNECT, ReleaseCause.API)


class KvCache:
    """Blocks for requests, by slot. `pool` knows how many there are; `pins` is for other declared holders.

    `faults` switches one defect on; `eviction` says which cached block goes first. `hash_seed` salts the prefix keys:
    by default random, and fixed under a virtual clock; `key_bits` < 64 shortens them, to force collisions in tests.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        faults: FaultPlan | None = None,
        key_bits: int = 64,
        hash_seed: int | None = None,
        eviction: Eviction = Eviction.LRU,
    ) -> None:
        groups = ledger.limits.groups
        if len(groups) != 1:
            raise BadConfig(f"groups={len(groups)}: this engine keeps one cache group, give it one")
        self._size = groups[0].block_size_tokens
        self._ledger, self._slots, self._blocks, self._faults = ledger, ledger.slots, ledger.blocks, faults
        index = PrefixIndex(ledger, block_size_tokens=self._size, faults=faults)
        self._policy = reprieves(eviction, ledger.limits.capacity_blocks)
        self.pool = BlockPool(ledger, index, faults, self._policy)
        self.pins = PinTable(ledger, self.pool)
        self._tables = BlockTables(ledger)
        self._chains = PrefixChains(ledger, index, seed=hash_seed, key_bits=key_bits, trusting=faults is None)
        self._copies = CopyOnWrite(ledger, self.pool, self._tables, self.pins, faults)
        self._metering = Metering(ledger)

    # -- admission ------------------------------------------------------------------------------------------------

    def match(self, slot: int, tokens: I32, salt: int) -> int:
        """Tokens of the longest cached prefix of full blocks, fewer than len(tokens). Holds nothing."""
        began_ns = self._metering.now_ns()
        hits = self._chains.match(slot, tokens, salt)
        self._metering.shared(began_ns)
        return len(hits) * self._size

    def match_held(self, slot: int, tokens: I32, salt: int) -> tuple[int, int]:
        """As `match`; and how many of the prefix's blocks nobody holds, for which whoever takes them is charged."""
        began_ns = self._metering.now_ns()
        hits = self._chains.match(slot, tokens, salt)
        self._metering.shared(began_ns)
        return len(hits) * self._size, int(np.count_nonzero(self._blocks.ref_count[hits] < 1))

    def admit(self, slot: int, tokens: I32, salt: int, new_tokens: int) -> int | None:
        """Give an empty slot the cached prefix of `tokens` and blocks for `new_tokens` after it.

        Returns the tokens of the prefix, None (and holds nothing) if blocks are short.
        """
        assert self._tables.length(slot) == 0, f"slot {slot} was admitted while it held blocks"
        began_ns = self._metering.now_ns()
        hits = self._chains.match(slot, tokens, salt)
        self._metering.shared(began_ns)
        further = -(-new_tokens // self._size)
        at, count = np.array([slot]), np.array([len(hits) + further])
        try:
            self.pool.check(further, reserved=int(np.count_nonzero(self._blocks.ref_count[hits] < 1)))
            room = self._tables.check(at, count)
        except NotEnoughBlocks:
            return None
        began_ns = self._metering.now_ns()
        self._begin(slot, hits, tokens, salt)
        self._metering.shared(began_ns)
        self._attach(at, count, np.concatenate((hits, self._take(at.repeat(further)))), room)
        if self._ledger.limits.prefix_caching:
            self._metering.count_query(len(tokens), len(hits) * self._size)
        return len(hits) * self._size

    def _begin(self, slot: int, hits: Ids, tokens: I32, salt: int) -> None:
        """Set the block fields of a slot whose table begins with the blocks `hits`, and share those."""
        slots = self._slots
        slots.changed_seq[slot] = self._ledger.seq_value
        self.pool.share(hits, int(slots.tenant[slot]))
        self._chains.begin(slot, hits, tokens, salt)
        slots.computed_tokens[slot] = slots.own_from_token[slot] = len(hits) * self._size
        slots.share_base[slot] = self.pool.clocks.read(hits).sum()
        self._metering.attached(slot)

    # -- growth ---------------------------------------------------------------------------------------------------

    def blocks_needed(self, slots: Integers, tokens_after: Integers) -> I32:
        """Further blocks each slot needs to hold tokens_after tokens, a copy of a shared block included.

        An upper bound: when all holders of a block grow in one call, the last of them needs no copy.
        """
        needed = self._missing(slots, tokens_after)
        writes = self._copies.shared_writes(slots, tokens_after)
        if len(writes):
            needed[writes.rows] += self._blocks.ref_count[writes.sources] >= 2
        return needed

    def _missing(self, slots: Integers, tokens_after: Integers) -> I32:
        missing: Integers = (tokens_after + (self._size - 1)) // self._size - self._tables.lengths(slots)
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
        growing, counts = slots[grown], missing[grown]
        self.pool.check(int(counts.sum()) + len(copied))
        room = self._tables.check(growing, counts)
        copied = self._copies.made(writes, copied)
        blocks = self._take(np.concatenate((growing.repeat(counts), writes.slots[copied])))
        further = len(blocks) - len(copied)
        self._attach(growing, counts, blocks[:further], room)
        if len(writes):
            began_ns = self._metering.now_ns()
            self._copies.own(writes, copied, blocks[further:])
            self._metering.shared(began_ns)

    def _take(self, slots: Ids) -> Ids:
        """One block for the request in each of `slots`."""
        if len(slots) == 0:
            return NO_BLOCKS
        began_ns = self._metering.now_ns()
        blocks = self.pool.take(self._slots.serial[slots], self._slots.tenant[slots]).astype(np.intp)
        self._metering.allocated(began_ns)
        return blocks

    def _attach(self, slots: Ids, counts: Integers, blocks: Integers, room: Integers) -> None:
        if len(blocks) == 0:
            return
        self._tables.append(slots, counts, blocks, room)
        peaks = self._slots.peak_blocks
        before = peaks[slots]
        peaks[slots] = np.maximum(before, self._tables.lengths(slots))
        if np.count_nonzero(before) < len(before):
            self._metering.first_blocks(slots[before == 0])

    def take_copies(self) -> tuple[I32, I32]:
        """(sources, targets) of block copies to be made before this step writes; pinned until `copies_done`."""
        return self._copies.pending()

    def copies_done(self) -> None:
        """The copies of `take_copies` have been made."""
        if self._copies.are_pending:
            began_ns = self._metering.now_ns()
            self._copies.done()
            self._metering.shared(began_ns)

    def fork(self, source: int, target: int) -> None:
        """Give the empty slot `target` the table of `source`, which must hold no more than its computed tokens need.

        Whoever writes first into a block that both hold gets a copy. Raises `ArenaFull` with nothing changed.
        """
        slots, blocks = self._slots, self._tables.blocks_of(source).astype(np.intp)
        computed = int(slots.computed_tokens[source])
        assert self._tables.length(target) == 0, f"slot {target} was forked into while it held blocks"
        assert len(blocks) == -(-computed // self._size), f"slot {source} has blocks beyond its {computed} tokens"
        at, count = np.array([target]), np.array([len(blocks)])
        room = self._tables.check(at, count)
        began_ns = self._metering.now_ns()
        slots.changed_seq[[source, target]] = self._ledger.seq_value
        self.pool.share(blocks)
        slots.computed_tokens[target] = computed
        slots.own_from_token[[source, target]] = len(blocks) * self._size
        slots.share_base[target] = self.pool.clocks.read(blocks).sum()
        self._chains.fork(source, target)
        self._metering.attached(target)
        self._metering.shared(began_ns)
        self._attach(at, count, blocks, room)

    # -- after the compute ----------------------------------------------------------------------------------------

    def commit(self, slots: Integers, computed_tokens: Integers, tokens: TokenStore, salts: U64) -> None:
        """The keys and values of the first `computed_tokens` tokens of each distinct slot are stored now.

        Blocks that became full enter the prefix index under the slots' `salts`; what is indexed may be shared, so it
        lies before own_from_token.
        """
        slots, after = slots.astype(np.intp), computed_tokens.astype(np.intp)
        first = self._slots.computed_tokens[slots].astype(np.intp) // self._size
        counts = (after - 1) // self._size - first + 1
        rows = np.arange(len(slots)).repeat(counts)
        indexes = first[rows] + np.arange(len(rows)) - (counts.cumsum() - counts)[rows]
        at = slots[rows]
        blocks = self._tables.entries(at, indexes).astype(np.intp)
        held = np.minimum(after[rows] - indexes * self._size, self._size)
        self._ledger.stamp(blocks)
        self._blocks.filled_tokens[blocks] = held
        self._slots.computed_tokens[slots] = after
        full = (held == self._size).nonzero()[0]
        if len(full):
            began_ns = self._metering.now_ns()
            if self._policy is not None:
                self._policy.filled(blocks[full], indexes[full])
            at, indexes = at[full], indexes[full]
            indexed = self._chains.publish(at, indexes, blocks[full], tokens, salts[rows[full]])
            self._disown(at[indexed], (indexes[indexed] + 1) * self._size)
            self._metering.shared(began_ns)

    def _disown(self, slots: Ids, ends: Integers) -> None:
        """What lies before token `ends` may be shared from now on; each slot's rows rise."""
        self._slots.changed_seq[slots] = self._ledger.seq_value
        self._slots.own_from_token[slots] = np.maximum(self._slots.own_from_token[slots], ends)

    # -- release --------------------------------------------------------------------------------------------------

    def release(self, slot: int, *, cause: ReleaseCause) -> int:
        """Give all of a slot's blocks back, its tail first; returns how many. Block-seconds go to the slot."""
        slots, blocks = self._slots, self._tables.blocks_of(slot)[::-1].astype(np.intp)
        self._ledger.stamp(blocks)
        slots.changed_seq[slot] = self._ledger.seq_value
        slots.computed_tokens[slot] = slots.own_from_token[slot] = 0
        self._metering.released(slot, blocks, cause)
        self._copies.forget(blocks)
        self._tables.clear(slot)
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
        """Block tables of the slots, in order, as (blocks, offsets): table i is blocks[offsets[i]:offsets[i + 1]]."""
        return self._tables.gather(slots.astype(np.intp))

    def held_blocks(self, slot: int) -> int:
        """The length of one slot's block table."""
        return self._tables.length(slot)

    def blocks_of(self, slot: int) -> I32:
        """One slot's block table."""
        return self._tables.blocks_of(slot)
