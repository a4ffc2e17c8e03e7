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
from kvledger.snapshot import PinTable, SlotTable
from kvledger.tables import Tables, read_tables
from kvledger.views import I32, I64, U64

Mask = NDArray[np.bool_]
FEW_BLOCKS = 512  # a read of one value costs as much as 20 kB of a whole section


class Audit:
    """The arrays of one audit; all of them borrowed until the next look through the same buffers.

    The protocol: `published_seq` is read first, then the counts, then slots and tables, then the other sections, and
    the stamps (`block.changed_seq`) last. The writer numbers its publications without gaps, stores a block's stamp
    before it changes the block or an entry naming it, and stores `published_seq` last. So a block whose stamp is at
    most `published_seq` was not touched by any later publication up to the moment its stamp was read, and the earlier
    ones were over when this began: all that was copied of it is of one state. (Stamps only rise, so reading them a
    second time before the data could not tell more.) Such blocks are `stable`; nothing is concluded about others.

    Counts are read before the lists they bound: an entry below the count was in use then, and if it names a stable
    block now, it did so then.
    """

    def __init__(self, sections: Sections, control: Mapping[str, int], *, now_ns: int) -> None:
        self._sections, self.control, self.now_ns = sections, control, now_ns
        self.head = sections.head
        self.published_seq, self.writing_seq = control["published_seq"], control["writing_seq"]
        self.capacity_blocks = self.head.sections["block.state"].shape[0]
        self.slots: SlotTable = rows.look(sections, self.published_seq)
        self.tables: Tables = read_tables(sections, self.slots)
        self.damage: list[str] = list(self.tables.damage)
        self.free: I32 = self._stack("free.list", "free_count")
        self.ref_count: I32 = sections.read("block.ref_count")
        self.state: NDArray[np.uint8] = sections.read("block.state")
        self.index_slot: I32 = sections.read("block.index_slot")
        self.evict_ticket: I64 = sections.read("block.evict_ticket")
        self.prefix_hash: U64 = sections.read("block.prefix_hash")
        self.evict_positions, self.evict_blocks = self._eviction_order()
        self.index_key: U64 = sections.read("index.key")
        self.index_block: I32 = sections.read("index.block")
        self.pins: PinTable = read_pins(sections)
        self.quiescent = False

    def settle(self, control: Mapping[str, int]) -> None:
        """Take note of the control words after everything was read: whether a publication went on meanwhile."""
        self.quiescent = self.published_seq == self.writing_seq == control["published_seq"] == control["writing_seq"]

    @cached_property
    def changed_seq(self) -> U64:
        """The blocks' stamps, read when first asked for, hence after everything the audit holds."""
        stamps: U64 = self._sections.read("block.changed_seq")
        return stamps

    @cached_property
    def stable(self) -> Mask:
        """Blocks of which everything in this audit is of one published state, shape (capacity,)."""
        stable: Mask = self.changed_seq <= max(self.published_seq, 0)
        return stable

    def column(self, name: str) -> NDArray[Any]:
        """Another per-block section, such as `owner` or `tenant`. Ask for it before `stable` is first used."""
        return self._sections.read(f"block.{name}")

    @cached_property
    def table_references(self) -> I32:
        """How many entries of live tables name each block."""
        return count_blocks(self.tables.blocks, self.capacity_blocks)

    @cached_property
    def pin_references(self) -> I32:
        """How many pins name each block."""
        return count_blocks(self.pins.block, self.capacity_blocks)

    def values(self, name: str, blocks: I32) -> NDArray[Any]:
        """A per-block section at some blocks only."""
        if len(blocks) > FEW_BLOCKS:
            return self.column(name)[blocks]
        values = [self._sections.read(f"block.{name}", 1, start=block, buffer="one")[0] for block in blocks.tolist()]
        return np.array(values, self.head.sections[f"block.{name}"].dtype)

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
        return self._inside(self._sections.read(name, used), name)

    def _inside(self, blocks: I32, what: str) -> I32:
        outside = (blocks < 0) | (blocks >= self.capacity_blocks)
        if not outside.any():
            return blocks
        self.damage.append(f"{int(outside.sum())} entries of {what} name no block")
        return blocks[~outside]

    def _eviction_order(self) -> tuple[I64, I32]:
        size = self.head.sections["evict.ring"].shape[0]
        head, tail = self.control["evict_head"], self.control["evict_tail"]
        if not 0 <= head <= tail <= head + size:
            self.damage.append(f"evict_head={head}, evict_tail={tail} in a ring of {size}")
            return np.empty(0, np.int64), np.empty(0, np.int32)
        positions = np.arange(head, tail, dtype=np.int64)
        blocks = self._sections.read("evict.ring")[positions % size]
        inside = (blocks >= 0) & (blocks < self.capacity_blocks)
        positions, blocks = positions[inside], blocks[inside]
        valid = self.evict_ticket[blocks] == positions
        return positions[valid], blocks[valid]


def count_blocks(blocks: I32, capacity: int) -> I32:
    """How often each block is named, shape (capacity,); negative entries name none."""
    named = blocks[blocks >= 0] if len(blocks) and int(blocks.min()) < 0 else blocks
    return np.bincount(named, minlength=capacity).astype(np.int32)


def read_pins(sections: Sections) -> PinTable:
    """The pins in use that name a block of the pool. A pin made or taken back meanwhile is left out."""
    capacity = sections.head.sections["block.state"].shape[0]
    named = sections.read("pin.block")
    entry = np.flatnonzero((named >= 0) & (named < capacity))
    used = int(entry[-1]) + 1 if len(entry) else 0
    block, since = named[entry], sections.read("pin.since_ns", used)[entry]
    kind, holder, lease = (sections.read(f"pin.{name}", used)[entry] for name in ("kind", "holder", "lease_ns"))
    same = (sections.read("pin.block", used)[entry] == block) & (sections.read("pin.since_ns", used)[entry] == since)
    return PinTable(entry.astype(np.int32)[same], *(column[same] for column in (block, kind, holder, since, lease)))
