"""One look at every block: references, tables, free list, eviction order, index and pins, under the blocks' stamps.

Owns what may be believed of a file that its writer goes on changing; `kvledger.invariants` says what it means.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger import rows
from kvledger.buffers import Sections
from kvledger.evictions import EvictionOrder, TicketCheck
from kvledger.head import Head
from kvledger.links import LinkCheck
from kvledger.pins import PinTable, read_pins
from kvledger.references import TableReferences
from kvledger.snapshot import SlotTable
from kvledger.sweep import Others, Sweep
from kvledger.tables import Tables, read_tables
from kvledger.views import I32, U8
from kvledger.words import BlockState

Mask = NDArray[np.bool_]
MOST_LISTED = 200


class AuditMemory:
    """What the audits of one ledger leave for the next one: references counted, whose turn it is, what was wrong."""

    def __init__(self, head: Head) -> None:
        capacity = head.sections["block.state"].shape[0]
        self.references = TableReferences(capacity, *head.sections["arena.chunk"].shape)
        self.tickets, self.links = TicketCheck(), LinkCheck()


class Audit:
    """What one audit found, most of it borrowed until the next look through the same buffers.

    The protocol: `published_seq` is read first, then the counts, then slots and tables, then the other sections, and
    the stamps (`block.changed_seq`) last. The writer numbers its publications without gaps, stores a block's stamp
    before it changes the block or an entry naming it, and stores `published_seq` last. So a block whose stamp is at
    most `published_seq` was not touched by any later publication up to the moment its stamp was read, and the earlier
    ones were over when this began: all that was copied of it before its stamp is of one state. (Stamps only rise, so
    reading them before the data as well could not tell more.) Such blocks are `stable`; nothing is concluded about
    others.

    Counts are read before the lists they bound: an entry below the count was in use then, and if it names a stable
    block now, it did so then.
    """

    def __init__(self, sections: Sections, control: Mapping[str, int], *, memory: AuditMemory, now_ns: int) -> None:
        self._sections, self.control, self.now_ns = sections, control, now_ns
        self.head = sections.head
        self.published_seq, self.writing_seq = control["published_seq"], control["writing_seq"]
        self.capacity_blocks = self.head.sections["block.state"].shape[0]
        self.slots: SlotTable = rows.look(sections, self.published_seq)
        self.tables: Tables = read_tables(sections, self.slots)
        memory.references.update(self.tables.arena, self.tables.chain, self.tables.used)
        self.table_references: I32 = memory.references.counts
        self.damage: list[str] = list(self.tables.damage)
        if memory.references.outside:
            self.damage.append(f"{memory.references.outside} block-table entries name no block")
        self.free: I32 = self._stack("free.list", "free_count")
        self.pins: PinTable = read_pins(sections)
        self._sweep(memory)

    def _sweep(self, memory: AuditMemory) -> None:
        sections, capacity = self._sections, self.capacity_blocks
        order = EvictionOrder(sections, self.control)
        ringed: Mask = sections.scratch("ringed", capacity, np.bool_)
        order.mark(ringed)
        explained = self.table_references + self.pin_references if len(self.pins) else self.table_references
        others = Others(
            tabled=self.table_references,
            explained=explained,
            listed=self._listed(),
            ringed=ringed,
            slots=memory.links.begin(sections),
        )
        self.sweep = Sweep(sections, others)
        corrected = memory.tickets.compare(sections, order, self.sweep.evictable)
        self.misplaced: I32 = np.union1d(self.sweep.misplaced, corrected)
        self.stale_index: I32 = memory.links.compare(sections, self.sweep, self.published_seq)
        self.damage += [*order.damage, *memory.links.damage(capacity)]

    @property
    def quiescent(self) -> bool:
        """Whether no publication has been open or has ended from the first look of this audit until now."""
        control = self._sections.control()
        return self.published_seq == self.writing_seq == control["published_seq"] == control["writing_seq"]

    @property
    def indexed_blocks(self) -> int:
        """Entries of the prefix index that name something."""
        return int(np.count_nonzero(self._sections.read("index.block") >= 0))

    @property
    def contradicted_blocks(self) -> int:
        """Blocks whose state says active and whose count does not, or the other way round."""
        return int(np.count_nonzero(self.sweep.held != (self.column("state") == int(BlockState.ACTIVE))))

    @cached_property
    def stable(self) -> Mask:
        """Blocks of which everything read so far is of one published state, shape (capacity,)."""
        stable: Mask = self.column("changed_seq") <= max(self.published_seq, 0)
        return stable

    def column(self, name: str) -> NDArray[Any]:
        """A per-block section as it is now, such as `owner`. Ask for it before `stable` is first used."""
        return self._sections.read(f"block.{name}")

    def values(self, name: str, blocks: I32) -> NDArray[Any]:
        """A per-block section as it is now, at some blocks only; `changed_seq` after the others vouches for them."""
        return self._sections.values(f"block.{name}", blocks)

    @cached_property
    def pin_references(self) -> I32:
        """How many pins name each block, shape (capacity,)."""
        return count_blocks(self.pins.block, self.capacity_blocks)

    def holders(self, block: int) -> I32:
        """Slots whose tables name a block."""
        entries = np.flatnonzero(self.tables.blocks == block)
        table = np.searchsorted(self.tables.offsets, entries, side="right") - 1
        slots: I32 = self.slots.slot[np.unique(table // self.tables.groups)]
        return slots

    def _stack(self, name: str, count: str) -> I32:
        size = self.head.sections[name].shape[0]
        used = self.control[count]
        if not 0 <= used <= size:
            self.damage.append(f"{count}={used} of {size} entries")
            used = min(max(used, 0), size)
        blocks = self._sections.read(name, used)
        if not used or (int(blocks.min()) >= 0 and int(blocks.max()) < self.capacity_blocks):
            return blocks
        inside = (blocks >= 0) & (blocks < self.capacity_blocks)
        self.damage.append(f"{int(np.count_nonzero(~inside))} entries of {name} name no block")
        return blocks[inside]

    def _listed(self) -> U8:
        """How often the free list names each block, up to `MOST_LISTED` times."""
        listed: U8 = self._sections.scratch("listed", self.capacity_blocks, np.uint8)
        listed[:] = 0
        listed[self.free.astype(np.intp)] = 1
        if int(np.count_nonzero(listed)) != len(self.free):
            np.minimum(count_blocks(self.free, self.capacity_blocks), MOST_LISTED, out=listed, casting="unsafe")
        return listed


def count_blocks(blocks: I32, capacity: int) -> I32:
    """How often each block is named, shape (capacity,)."""
    counts = np.zeros(capacity, np.int32)
    np.add.at(counts, blocks, np.int32(1))
    return counts
