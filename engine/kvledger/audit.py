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
from kvledger.links import LinkCheck, Links
from kvledger.pins import PinTable, read_pins
from kvledger.snapshot import SlotTable
from kvledger.tables import Tables, read_tables
from kvledger.views import I32

Mask = NDArray[np.bool_]
Counts = NDArray[np.uint16] | NDArray[np.int32]


class Audit:
    """The arrays of one audit, most of them borrowed until the next look through the same buffers.

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

    def __init__(self, sections: Sections, control: Mapping[str, int], *, check: LinkCheck, now_ns: int) -> None:
        self._sections, self.control, self.now_ns = sections, control, now_ns
        self.head = sections.head
        self.published_seq, self.writing_seq = control["published_seq"], control["writing_seq"]
        self.capacity_blocks = self.head.sections["block.state"].shape[0]
        self.slots: SlotTable = rows.look(sections, self.published_seq)
        self.tables: Tables = read_tables(sections, self.slots)
        self.damage: list[str] = list(self.tables.damage)
        self.free: I32 = self._stack("free.list", "free_count")
        self.pins: PinTable = read_pins(sections)
        self.ref_count: I32 = sections.read("block.ref_count")
        self.state: NDArray[np.uint8] = sections.read("block.state")
        self.index_slot: I32 = sections.read("block.index_slot")
        self.links: Links = check.compare(sections, control, state=self.state, index_slot=self.index_slot)
        self.damage += self.links.damage
        self.quiescent = False

    def settle(self, control: Mapping[str, int]) -> None:
        """Take note of the control words after everything was read: whether a publication went on meanwhile."""
        self.quiescent = self.published_seq == self.writing_seq == control["published_seq"] == control["writing_seq"]

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
    def table_references(self) -> Counts:
        """How many entries of live tables name each block."""
        return count_blocks(self.tables.blocks, self.capacity_blocks, tables=len(self.tables.offsets) - 1)

    @cached_property
    def pin_references(self) -> Counts:
        """How many pins name each block."""
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


def count_blocks(blocks: I32, capacity: int, *, tables: int = 1 << 16) -> Counts:
    """How often each block is named, shape (capacity,); negative entries name none.

    Two bytes a block where no block can be named more often than there are `tables`: a quarter of the cache misses.
    """
    counts: NDArray[Any] = np.zeros(capacity, np.uint16 if tables < 1 << 16 else np.int32)
    if len(blocks):
        named = blocks[blocks >= 0] if int(blocks.min()) < 0 else blocks
        np.add.at(counts, named, counts.dtype.type(1))
    return counts
