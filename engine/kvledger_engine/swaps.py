"""Swaps: the content of preempted sequences, saved in host blocks and brought back bit for bit.

Owns who has what saved, and the copies that the next step makes; never copies a byte itself. A block that several of
them held is saved once, and shared again where its content still lies in the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvledger.views import I32, I64, U64
from kvledger.words import BlockState, PreemptionMode, SwapDirection
from kvledger.writer import Ledger
from kvledger_engine.batch import HostCopies
from kvledger_engine.chains import PrefixChains
from kvledger_engine.copies import CopyOnWrite
from kvledger_engine.errors import NotEnoughBlocks
from kvledger_engine.holdings import Holdings
from kvledger_engine.hostblocks import HostBlocks
from kvledger_engine.ids import Ids
from kvledger_engine.metering import Metering
from kvledger_engine.pool import BlockPool
from kvledger_engine.preemption import preemption_mode
from kvledger_engine.tables import BlockTables
from kvledger_engine.transfers import Transfers
from kvledger_engine.windows import Windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What one sequence has saved: the host blocks of its tables, table after table.

    `counts` and `skipped` are by cache group: blocks saved of each table, and those that had left its window. `tokens`
    are stored in them.
    """

    hosts: I32
    counts: I64
    skipped: I32
    tokens: int


class Swaps:
    """The saved sequences of one cache, by slot. Without host blocks none is ever saved."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        host_blocks: int,
        pool: BlockPool,
        tables: BlockTables,
        windows: Windows,
        copies: CopyOnWrite,
        chains: PrefixChains,
        holdings: Holdings,
        metering: Metering,
    ) -> None:
        self._ledger, self._slots, self._blocks = ledger, ledger.slots, ledger.blocks
        self._size = ledger.limits.groups[0].block_size_tokens
        self._pool, self._tables, self._windows, self._copies = pool, tables, windows, copies
        self._chains, self._holdings, self._metering = chains, holdings, metering
        self.host = HostBlocks(host_blocks, ledger.limits.capacity_blocks if host_blocks else 0)
        self._transfers = Transfers(self.host)
        self._saved: dict[int, Saved] = {}
        self._arriving: set[int] = set()
        if host_blocks:
            holdings.on_take = self._transfers.overwritten

    @property
    def used_blocks(self) -> int:
        """Host blocks in use."""
        return self.host.capacity - self.host.free_blocks

    # -- out ------------------------------------------------------------------------------------------------------

    def save(self, slot: int) -> int:
        """Keep what the slot's blocks hold; they must be given back in this publication. Returns how many were saved.

        That is 0 where there is nothing to save, or no room for it: its tokens are to be computed again then.
        """
        if not self.host.capacity:
            return 0
        tables, tokens = self._windows.tables(np.array([slot])), self._slots.computed_tokens.item(slot)
        blocks, offsets = self._tables.gather(tables)
        skipped = self._windows.skipped[tables]
        counts = -(-tokens // self._size) - skipped.astype(np.int64)
        sources = self._copies.origins(blocks[_ramps(offsets[:-1], counts)])
        hosts = self.host.of(sources)
        lacking = hosts < 0
        copied = int(np.count_nonzero(lacking))
        mode = preemption_mode(saved_blocks=len(sources), copied_blocks=copied, free_blocks=self.host.free_blocks)
        if mode is PreemptionMode.RECOMPUTE:
            return 0
        self.host.hold(hosts[~lacking])
        copied_from = sources[lacking]
        hosts[lacking] = self.host.take(copied_from, self._blocks.filled_tokens[copied_from] == self._size)
        self._transfers.copy_out(copied_from, hosts[lacking])
        self._saved[slot] = Saved(hosts=hosts, counts=counts, skipped=skipped.copy(), tokens=tokens)
        self._arriving.discard(slot)
        return len(hosts)

    # -- in -------------------------------------------------------------------------------------------------------

    def tokens_of(self, slot: int) -> int:
        """Tokens whose keys and values a sequence has saved."""
        return self._saved[slot].tokens

    def blocks_needed(self, slot: int, tokens_after: int) -> int:
        """Blocks that a saved sequence takes, or that come back to life, until it holds so many tokens."""
        saved = self._saved[slot]
        twins = self._twins(saved.hosts)
        held = twins[twins >= 0]
        again = len(twins) - int(np.count_nonzero(self._blocks.ref_count[held] >= 1))
        if self._windows.plain:
            return again + -(-tokens_after // self._size) - int(saved.counts[0])
        return again + self._windows.blocks_beyond(saved.tokens, tokens_after)

    def _twins(self, hosts: I32) -> I32:
        """Pool blocks that can be shared instead of copied back, -1 for none: what is free may not be."""
        twins = self.host.twins(hosts)
        return np.where((twins >= 0) & (self._blocks.state[twins] != BlockState.FREE), twins, -1).astype(np.int32)

    def restore(self, slot: int, tokens_after: int) -> bool:
        """Give an empty slot what it has saved, and room for `tokens_after` tokens; False, and nothing, if blocks lack.

        The content is there once the next step has begun to compute.
        """
        saved, at = self._saved[slot], np.array([slot])
        tables = self._windows.tables(at)
        counts = -(-tokens_after // self._size) - saved.skipped.astype(np.int64)
        twins = self._twins(saved.hosts)
        shared, absent = twins[twins >= 0], twins < 0
        reserved = int(np.count_nonzero(self._blocks.ref_count[shared] < 1))
        try:
            self._pool.check(int(counts.sum()) - len(shared), reserved=reserved)
            self._tables.check(tables, counts)
        except NotEnoughBlocks:
            return False
        self._begin(slot, saved, tables, shared)
        blocks = np.full(int(counts.sum()), -1, np.intp)
        places = _ramps(np.cumsum(counts) - counts, saved.counts)
        blocks[places] = twins
        fresh = (blocks < 0).nonzero()[0]
        blocks[fresh] = self._holdings.take(len(fresh), at, (tables % self._windows.count).repeat(counts)[fresh])
        self._holdings.attach(at, counts, blocks)
        self._bring(saved, blocks[places], absent)
        del self._saved[slot]
        self._arriving.add(slot)
        return True

    def _begin(self, slot: int, saved: Saved, tables: I32 | I64, shared: I32) -> None:
        """The slot's block fields: whole blocks may be shared, now or later; what is behind them is its own."""
        slots = self._slots
        slots.changed_seq[slot] = self._ledger.seq_value
        slots.share_base[slot] = self._pool.share(shared, slots.tenant.item(slot))
        slots.computed_tokens[slot] = saved.tokens
        slots.own_from_token[slot] = saved.tokens // self._size * self._size
        self._windows.skipped[tables] = saved.skipped
        self._metering.attached(slot, len(shared))

    def _bring(self, saved: Saved, blocks: Ids, absent: np.ndarray) -> None:
        """Plan the copies into those of the slot's `blocks` that are `absent`; the others are shared."""
        hosts, targets = saved.hosts[absent], blocks[absent].astype(np.int32)
        # As if the gap were in front of the sinks, too: only the last block may lack tokens, and its place is right.
        before = _ramps(saved.skipped, saved.counts)[absent] * self._size
        self._blocks.filled_tokens[targets] = np.minimum(saved.tokens - before, self._size)
        self._transfers.bring_in(hosts, targets)
        self._transfers.drop(saved.hosts[~absent])

    # -- the step -------------------------------------------------------------------------------------------------

    @property
    def are_pending(self) -> bool:
        """Whether the next step has blocks to copy."""
        return len(self._transfers) > 0 or len(self._arriving) > 0

    def pending(self) -> HostCopies | None:
        """The copies that the next step makes; None for none."""
        return self._transfers.pending() if len(self._transfers) else None

    def done(self, tokens: I32, salts: U64) -> None:
        """The copies have been made. What came back is indexed again: `tokens` and `salts` are by slot."""
        if not self.are_pending:
            return
        self._metering.moved(len(self._transfers.out_hosts), SwapDirection.OUT)
        self._metering.moved(len(self._transfers.in_hosts), SwapDirection.IN)
        self._transfers.done()
        for slot in sorted(self._arriving):
            self._rejoin(slot, tokens, salts)
        self._arriving.clear()

    def failed(self) -> list[int]:
        """The step failed: nothing that it was to save is. Returns the slots that have lost what they had."""
        hosts = self._transfers.out_hosts
        lost = [slot for slot, saved in self._saved.items() if np.isin(saved.hosts, hosts).any()]
        for slot in lost:
            self.forget(slot)
        self._transfers.failed()
        self._arriving.clear()
        return lost

    def _rejoin(self, slot: int, tokens: I32, salts: U64) -> None:
        if not self._windows.plain:
            return
        full = self._slots.computed_tokens.item(slot) // self._size
        blocks = self._tables.blocks_of(slot)[:full].astype(np.intp)
        self._ledger.stamp(blocks)
        self._chains.rejoin(slot, blocks, tokens, salts)

    # -- ends -----------------------------------------------------------------------------------------------------

    def forget(self, slot: int) -> None:
        """A sequence ends, or is to be computed again: what it has saved is given back at once."""
        self._arriving.discard(slot)
        saved = self._saved.pop(slot, None)
        if saved is not None:
            self._transfers.drop(saved.hosts)


def _ramps(starts: I32 | I64, counts: I64) -> I64:
    """starts[i], starts[i] + 1, … for counts[i] numbers, one after the other."""
    within = np.arange(int(counts.sum())) - (counts.cumsum() - counts).repeat(counts)
    ramps: I64 = within + starts.astype(np.int64).repeat(counts)
    return ramps
