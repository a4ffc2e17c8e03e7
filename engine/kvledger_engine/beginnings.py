"""Beginnings: how an empty slot comes to its first blocks, with a cached prefix or as a copy of another slot.

Owns the block fields as they are at a sequence's beginning: computed_tokens, own_from_token, share_base.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.accounts import Price
from kvledger_engine.chains import PrefixChains
from kvledger_engine.errors import NotEnoughBlocks
from kvledger_engine.hits import PrefixHits
from kvledger_engine.holdings import Holdings
from kvledger_engine.ids import Ids
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.tables import BlockTables
from kvledger_engine.windows import Windows


class Beginnings:
    """Sequences that begin in the slots of one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        pool: BlockPool,
        tables: BlockTables,
        windows: Windows,
        chains: PrefixChains,
        hits: PrefixHits,
        holdings: Holdings,
        metering: Metering,
    ) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        self._size = ledger.limits.groups[0].block_size_tokens
        self._pool, self._tables, self._windows, self._chains = pool, tables, windows, chains
        self._hits, self._holdings, self._metering = hits, holdings, metering

    def admit(self, slot: int, tokens: I32, salt: int, new_tokens: int) -> int | None:
        """Give an empty slot the cached prefix of `tokens` and blocks for `new_tokens` after it.

        Returns the tokens of the prefix, None (and holds nothing) if blocks are short.
        """
        assert not self._slots.table_blocks[slot].any(), f"slot {slot} was admitted while it held blocks"
        hits = self._hits.find(slot, tokens, salt)
        within = self._hits.within(hits)
        further, shared = -(-new_tokens // self._size), np.concatenate(within)
        tables = self._windows.tables(np.array([slot]))
        counts = np.array([len(part) + further for part in within])
        try:
            self._pool.check(further * len(within), reserved=int(np.count_nonzero(self._blocks.ref_count[shared] < 1)))
            self._tables.check(tables, counts)
        except NotEnoughBlocks:
            return None
        began_ns = self._metering.now_ns()
        self.begin(slot, hits[:, 0], tokens, salt, shared)
        self._metering.shared(began_ns, Price.REFERENCE, slot)
        at, groups = np.array([slot]), np.arange(len(within))
        fresh = self._holdings.take(further * len(within), at, groups if len(within) == 1 else groups.repeat(further))
        blocks = [part for pair in zip(within, np.split(fresh, len(within)), strict=True) for part in pair]
        self._holdings.attach(at, counts, np.concatenate(blocks))
        if self._ledger.limits.prefix_caching:
            self._metering.count_query(slot, len(tokens), len(hits) * self._size)
        return len(hits) * self._size

    def begin(self, slot: int, spine: Ids, tokens: I32, salt: int, shared: Ids) -> None:
        """Set the block fields of a slot whose sequence begins with the blocks `spine` of group 0.

        `shared` are the blocks of all groups that its tables begin with: they get a reference.
        """
        slots, at = self._slots, np.array([slot])
        slots.changed_seq[slot] = self._ledger.seq_value
        slots.share_base[slot] = self._pool.share(shared, slots.tenant.item(slot))
        self._chains.begin(slot, spine, tokens, salt)
        slots.computed_tokens[slot] = slots.own_from_token[slot] = len(spine) * self._size
        if self._windows.slide:
            self._windows.skipped[self._windows.tables(at)] = self._windows.outside(slots.computed_tokens[at])[0]
        self._metering.attached(slot, len(shared))

    def fork(self, source: int, target: int) -> None:
        """Give the empty slot `target` the table of `source`, which must hold no more than its computed tokens need.

        Whoever writes first into a block that both hold gets a copy. Raises `ArenaFull` with nothing changed.
        """
        slots, skipped = self._slots, self._windows.skipped
        computed = int(slots.computed_tokens[source])
        whole = -(-computed // self._size)
        ours, theirs = (self._windows.tables(np.array([slot])) for slot in (source, target))
        counts, blocks = self._tables.lengths(ours), self._tables.gather(ours)[0]
        assert not slots.table_blocks[target].any(), f"slot {target} was forked into while it held blocks"
        assert (counts + skipped[ours] == whole).all(), f"slot {source} has blocks beyond its {computed} tokens"
        self._tables.check(theirs, counts)
        began_ns = self._metering.now_ns()
        slots.changed_seq[[source, target]] = self._ledger.seq_value
        slots.share_base[target] = self._pool.share(blocks)
        slots.computed_tokens[target] = computed
        slots.own_from_token[[source, target]] = whole * self._size
        skipped[theirs] = skipped[ours]
        self._chains.fork(source, target)
        self._metering.attached(target, len(blocks))
        self._metering.accounts.fork(source, target, computed)
        self._metering.shared(began_ns, Price.REFERENCE, target)
        self._holdings.attach(np.array([target]), counts, blocks)
