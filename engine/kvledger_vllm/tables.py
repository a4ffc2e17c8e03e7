"""Block tables of mirrored requests, as chains of fixed chunks in the ledger's arena, per cache group.

Owns `arena.*` and the slots' `table_blocks`, `first_chunk` and `last_chunk`. Blocks and slots are stamped by the
caller before a table changes. Entries are ledger blocks: no null block, no block of another pool.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_vllm.errors import InstrumentError

_FREE = CONTROL_INDEX["free_chunk_count"]
_NO_CHUNK = -1


class BlockTables:
    """The tables of one group, by slot."""

    def __init__(self, ledger: Ledger, group: int) -> None:
        slots, arena = ledger.slots, ledger.arena
        self._ledger, self._arena = ledger, arena
        # Views: several times as fast for one number as numpy.
        self._control: Any = ledger.control.data
        self._length: Any = slots.table_blocks[:, group].data
        self._first: Any = slots.first_chunk[:, group].data
        self._last: Any = slots.last_chunk[:, group].data
        self._chunks: Any = arena.chunk.data
        self._width = ledger.limits.chunk_blocks

    def length(self, slot: int) -> int:
        """Blocks in a slot's table."""
        length: int = self._length[slot]
        return length

    def blocks_of(self, slot: int) -> list[int]:
        """A slot's table, a copy."""
        left, chunk, blocks = self.length(slot), self._first[slot], list[int]()
        while left > 0:
            blocks += self._arena.chunk[chunk, : min(left, self._width)].tolist()
            left, chunk = left - self._width, int(self._arena.next[chunk])
        return blocks

    def last(self, slot: int) -> int:
        """The last block of a slot's table, -1 where it is empty."""
        length = self._length[slot]
        block: int = self._chunks[self._last[slot], (length - 1) % self._width] if length else -1
        return block

    def extend(self, slot: int, blocks: list[int]) -> None:
        """Lengthen one slot's table by any number of blocks."""
        length, done = self._length[slot], 0
        if len(blocks) == 1:
            if length % self._width == 0:
                self._link(slot)
            self._chunks[self._last[slot], length % self._width] = blocks[0]
            self._length[slot] = length + 1
            return
        while done < len(blocks):
            at = (length + done) % self._width
            if at == 0:
                self._link(slot)
            piece = blocks[done : done + self._width - at]
            self._arena.chunk[self._last[slot], at : at + len(piece)] = piece
            done += len(piece)
        self._length[slot] = length + len(blocks)

    def clear(self, slot: int) -> None:
        """Empty a table and give its chunks back."""
        chunks, chunk = [], self._first[slot]
        while chunk != _NO_CHUNK:
            chunks.append(chunk)
            chunk = int(self._arena.next[chunk])
        self._length[slot] = 0
        self._first[slot] = self._last[slot] = _NO_CHUNK
        free = self._control[_FREE]
        self._arena.free_chunks[free : free + len(chunks)] = np.array(chunks[::-1], np.int32)
        self._control[_FREE] = free + len(chunks)

    def _link(self, slot: int) -> None:
        """Hang a further chunk on a slot's table. Raises `InstrumentError`, an overflow, if there is none."""
        free = self._control[_FREE] - 1
        if free < 0:
            self._ledger.overflow()
            raise InstrumentError(f"the ledger's {len(self._arena.next)} block-table chunks are all in use")
        chunk = int(self._arena.free_chunks[free])
        self._control[_FREE] = free
        self._arena.next[chunk] = _NO_CHUNK
        if self._last[slot] == _NO_CHUNK:
            self._first[slot] = chunk
        else:
            self._arena.next[self._last[slot]] = chunk
        self._last[slot] = chunk
