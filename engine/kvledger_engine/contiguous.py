"""ContiguousCache: the baselines that paging is held against. Each request has one run of adjacent blocks.

Behind the interface of `KvCache`, so that scheduler, ledger and compute are the same. `reserve` takes a run for the
longest context at admission; `grow` takes half as much again as is needed, goes on in place while it can, and else is
copied to a larger run. Nothing is shared. A loop runs over the requests that outgrow their run, as each one's place
depends on the one before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.allocation import Allocation
from kvledger_engine.chains import NO_BLOCKS
from kvledger_engine.errors import NotEnoughBlocks
from kvledger_engine.ids import Ids, Integers
from kvledger_engine.kvcache import KvCache
from kvledger_engine.runs import RunPool, first_fit


@dataclass(frozen=True, slots=True)
class _Growth:
    """One request that outgrows its run: the blocks it takes, and whether all it has goes there too."""

    slot: int
    first: int
    count: int
    moves: bool


class ContiguousCache(KvCache):
    """Runs for requests, by slot. `moves` and `moved_blocks` count copies, `fragmented` what room in pieces refused."""

    pool: RunPool
    pool_type = RunPool
    paged = False

    def __init__(self, ledger: Ledger, allocation: Allocation) -> None:
        super().__init__(ledger)
        self._reserves = allocation is Allocation.RESERVE
        self._longest = -(-ledger.limits.max_model_len_tokens // self._size)
        self.moves = self.moved_blocks = self.fragmented = 0

    # -- admission ------------------------------------------------------------------------------------------------

    def blocks_beyond(self, hit_tokens: int, tokens: int) -> int:
        """See `KvCache.blocks_beyond`: the least run with which a request can begin."""
        return self._longest if self._reserves else tokens // self._size + 1

    def admit(self, slot: int, tokens: I32, salt: int, new_tokens: int) -> int | None:
        """See `KvCache.admit`; a run for the whole of `tokens` is taken at once, and None also told where room is in
        pieces."""
        assert self.held_blocks(slot) == 0, f"slot {slot} was admitted while it held blocks"
        needed = self.blocks_beyond(0, len(tokens))
        found = self._find(self.pool.free(), needed)
        if found is None:
            self._refuse(needed)
            return None
        self._beginnings.begin(slot, NO_BLOCKS, tokens, salt, NO_BLOCKS)
        self._append(slot, *found)
        return 0

    def _find(self, free: np.ndarray, needed: int) -> tuple[int, int] | None:
        """First block and length of a run: with room to grow, else of what is needed; None where there is none."""
        roomy = self._longest if self._reserves else min(needed + needed // 2, max(self._longest, needed))
        for count in (roomy, needed):
            first = first_fit(free, count)
            if first is not None:
                return first, count
        return None

    def _refuse(self, needed: int) -> None:
        self.fragmented += needed <= self.pool.free_blocks
        self._metering.failed()

    def _append(self, slot: int, first: int, count: int) -> Ids:
        """Lengthen a slot's table by a free run."""
        began_ns = self._metering.now_ns()
        at, counts = np.array([slot]), np.array([count])
        self._tables.check(at, counts)
        blocks = self.pool.take_run(first, count, owner=self._slots.serial[slot], tenant=self._slots.tenant[slot])
        self._metering.allocated(began_ns)
        self._holdings.attach(at, counts, blocks)
        return blocks

    # -- growth ---------------------------------------------------------------------------------------------------

    def fits(self, slots: Integers, tokens_after: Integers) -> bool:
        """Whether each of the slots can hold its tokens_after tokens in one run, all of them together."""
        return self._plan(slots.astype(np.intp), tokens_after) is not None

    def restartable(self, slot: int) -> bool:
        """Whether a request that is alone and finds no larger run would find one, had it begun in an empty pool."""
        return self.held_blocks(slot) > 0 and int(self.blocks_of(slot)[0]) > 0

    def grow(self, slots: Integers, tokens_after: Integers) -> None:
        """See `KvCache.grow`; raises `NotEnoughBlocks`, with nothing taken, where there is no run for somebody."""
        plan = self._plan(slots.astype(np.intp), tokens_after)
        if plan is None:
            missing = int(self._growth.missing(slots.astype(np.intp), tokens_after).sum())
            self._refuse(missing)
            raise NotEnoughBlocks(missing, self.pool.longest_run_blocks)
        for growth in plan:
            if growth.moves:
                self._move(growth)
            else:
                self._append(growth.slot, growth.first, growth.count)

    def copies_done(self, seconds: float = 0.0) -> None:
        """See `KvCache.copies_done`. A run that moved was shared with nobody: it is no price of sharing."""
        self._copies.done()

    def _plan(self, slots: Ids, tokens_after: Integers) -> list[_Growth] | None:
        """Where those that outgrow their run go, in turn; None where one finds no place."""
        missing = self._growth.missing(slots, tokens_after)
        growing = missing.nonzero()[0]
        if not len(growing):
            return []
        free, plan = self.pool.free(), []
        for slot, more in zip(slots[growing].tolist(), missing[growing].tolist(), strict=True):
            held = self.blocks_of(slot)
            end = int(held[-1]) + 1
            if end + more <= len(free) and free[end : end + more].all():
                growth = _Growth(slot, end, more, moves=False)
            elif (found := self._find(free, len(held) + more)) is not None:
                growth = _Growth(slot, *found, moves=True)
            else:
                return None
            free[growth.first : growth.first + growth.count] = False
            plan.append(growth)
        return plan

    def _move(self, growth: _Growth) -> None:
        """Copy what a request has stored into a larger run; its old one is pinned until the copy was made."""
        slot, old = growth.slot, self.blocks_of(growth.slot).astype(np.intp)
        stored = -(-int(self._slots.computed_tokens[slot]) // self._size)
        self._ledger.stamp(old)
        self._tables.clear(slot)
        new = self._append(slot, growth.first, growth.count)
        self._blocks.filled_tokens[new[:stored]] = self._blocks.filled_tokens[old[:stored]]
        self._copies.moved(old[:stored], new[:stored], np.full(stored, slot))
        self._metering.recycled(np.full(len(old), slot), old)
        self._slots.block_seconds[slot] += self.pool.release(old)
        self.moves += 1
        self.moved_blocks += stored
