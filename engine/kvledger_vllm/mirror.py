"""The mirror of vLLM's block pool: what each touched block said of itself, copied into the ledger.

Reference counts are those that the blocks had after an entry point, never derived from what was asked for. A block is
free or cached when it said that it was in the free queue. Ledger block i is vLLM's block i + 1: the null block, 0, is
not counted. Owns `block.ref_count`, `block.state`, the lists, and the counts of blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from kvledger.words import BlockState
from kvledger.writer import Ledger
from kvledger_vllm.evictable import Evictable
from kvledger_vllm.freelist import FreeList
from kvledger_vllm.reading import FOUND, QUEUED
from kvledger_vllm.shareclocks import ShareClocks

_FREE, _CACHED, _ACTIVE = (int(state) for state in (BlockState.FREE, BlockState.CACHED, BlockState.ACTIVE))


@dataclass(slots=True)
class Change:
    """What touched blocks said. `fresh` ledger blocks were allocated since the last publication."""

    rows: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """(ledger block, references, state, whether it belongs on the free list)."""
    fresh: set[int] = field(default_factory=set)


class Mirror:
    """The ledger's blocks as copies of the engine's. `queued` is how many the engine counts in its free queue."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._blocks = ledger, ledger.blocks
        self.free, self._evictable, self.clocks = FreeList(ledger), Evictable(ledger), ShareClocks(ledger)
        stats = ledger.stats
        self._values = stats.values
        self._free_gauge, self._cached_gauge = stats.gauge("free_blocks"), stats.gauge("cached_blocks")
        self._active_gauge = stats.gauge("active_blocks")
        self.queued = ledger.limits.capacity_blocks
        blocks = ledger.blocks
        self._stamps, self._references, self._states = blocks.changed_seq.data, blocks.ref_count.data, blocks.state.data
        self._tenant, self._owner, self._filled = blocks.tenant.data, blocks.owner.data, blocks.filled_tokens.data
        self._allocated = blocks.allocated_ns.data
        self.begun: set[int] = set()
        """Blocks that became active in this publication: whose table they are in pays for them."""

    def differing(self, first: int, codes: list[int], *, unchanged: bool = False) -> list[int]:
        """Rows of those blocks of a stretch whose count, place, or being cached is not what the ledger says.

        `unchanged`: but for those that changed in this publication, maybe after they were read.
        """
        said = np.array(codes, np.int32)
        rows, references = slice(first, first + len(codes)), said >> 2
        queued = (said & QUEUED) > 0
        cached = queued & ((said & FOUND) > 0) & (references < 1)
        differs = references != self._blocks.ref_count[rows]
        differs |= cached != (self._blocks.state[rows] == _CACHED)
        differs |= (queued & ~cached) != self.free.listed(rows)
        if unchanged:
            differs &= self._blocks.changed_seq[rows] != self._ledger.seq_value
        found: list[int] = []
        for row in np.flatnonzero(differs).tolist():
            found += (first + row, codes[row])
        return found

    def look(self, touched: list[int], fresh: list[int], codes: list[int]) -> Change:
        """Take in the rows of touched blocks, and newly allocated ones with their codes. Changes nothing."""
        change = Change(fresh=set(fresh))
        # Of one block that is there twice both say the same.
        said = chain(zip(touched[::2], touched[1::2], strict=True), zip(fresh, codes, strict=True))
        for block, code in dict(said).items():
            references, queued = code >> 2, bool(code & QUEUED)
            state = _ACTIVE if references > 0 else _CACHED if queued and code & FOUND else _FREE
            # One that is held and in vLLM's free queue, or neither, goes on the list, or not, as vLLM has it: the
            # audit names it.
            change.rows.append((block, references, state, queued and state != _CACHED))
        return change

    def stamp(self, blocks: Iterable[int]) -> None:
        """Before entries that name them change."""
        stamps, seq = self._stamps, self._ledger.seq
        for block in blocks:
            stamps[block] = seq

    def begin(self, change: Change) -> None:
        """Before tables change: stamp, bring clocks up to now, end the charge of blocks that lose their last holder.

        What was allocated anew begins at 0 in `allocate`, after released tables were read.
        """
        stamps, references, tenant, begun = self._stamps, self._references, self._tenant, self.begun
        seq, fresh, charged = self._ledger.seq, change.fresh, dict[int, int]()
        for block, now, _, _ in change.rows:
            stamps[block] = seq
            old = references[block]
            if old > 0 and (now < 1 or block in fresh):
                charged[tenant[block]] = charged.get(tenant[block], 0) - 1
            if now > 0 and (old < 1 or block in fresh):
                begun.add(block)
        self.clocks.advance([row[0] for row in change.rows])
        self._charge(charged)

    def allocate(self, change: Change) -> None:
        """After released tables were read: what was allocated anew begins at 0, owned by nobody yet."""
        self.clocks.start(change.fresh)
        now, allocated, owner, filled = self._ledger.now_ns, self._allocated, self._owner, self._filled
        for block in change.fresh:
            allocated[block] = now
            owner[block] = filled[block] = 0

    def end(self, change: Change) -> None:
        """After tables changed: counts, states, lists, charges and gauges."""
        references, states, free, evictable = self._references, self._states, self.free, self._evictable
        active = 0
        leaving, freed, cached = list[int](), list[int](), list[int]()
        for block, now, state, listed in change.rows:
            active += (now > 0) - (references[block] > 0)
            references[block], states[block] = now, state
            if listed != free.has(block):
                (freed if listed else leaving).append(block)
            if (state == _CACHED) != evictable.has(block):
                if state == _CACHED:
                    cached.append(block)
                else:
                    evictable.take((block,))
        free.take(leaving)
        free.add(freed)
        evictable.add(cached)
        if self.begun:
            tenant, charged = self._tenant, dict[int, int]()
            for block in self.begun:
                charged[tenant[block]] = charged.get(tenant[block], 0) + 1
            self._charge(charged)
            self.begun.clear()
        self._values[self._active_gauge] += active
        self.count()

    def take(self, taken: Mapping[int, int]) -> None:
        """Blocks that nobody held were allocated, each at its time, in nanoseconds, stamped and in a table since."""
        blocks, columns = np.fromiter(taken, np.intp, len(taken)), self._blocks
        since_ns = np.fromiter(taken.values(), np.int64, len(taken))
        columns.share_clock[blocks], columns.share_since_ns[blocks] = 0.0, since_ns
        columns.allocated_ns[blocks], columns.filled_tokens[blocks] = since_ns, 0
        columns.ref_count[blocks], columns.state[blocks] = 1, _ACTIVE
        self.free.take([block for block in taken if self.free.has(block)])
        self._evictable.take(taken)
        self._ledger.charge_since(columns.tenant[blocks], since_ns)
        self._values[self._active_gauge] += len(blocks)
        self.count()

    def _charge(self, blocks_of: dict[int, int]) -> None:
        for column, blocks in blocks_of.items():
            self._ledger.charge_column(column, blocks)

    def count(self) -> None:
        """The gauges of blocks without a reference."""
        cached_count = len(self._evictable)
        self._values[self._cached_gauge] = cached_count
        # The engine's own count of its free queue, so that a count that went wrong there shows as a violation here.
        self._values[self._free_gauge] = self.queued - cached_count
