"""The rolling statement of the pool: what a few blocks say of themselves, stretch by stretch, all of them in turn."""

from __future__ import annotations

from typing import Any

ROUND_NS = 10_000_000_000
MOST_BLOCKS = 64
_FEWEST_SHARE = 16


class Stretch:
    """Goes round the pool once in `ROUND_NS`, if that needs no more than `MOST_BLOCKS` a publication.

    Not before a sixteenth of the pool is due, if that is less: one stretch costs little more than one block.
    """

    def __init__(self, blocks: list[Any]) -> None:
        self._blocks, self._next, self.due_ns = blocks, 1, 0
        self._count = max(1, min(MOST_BLOCKS, len(blocks) // _FEWEST_SHARE))
        self._rest_ns = self._count * ROUND_NS // len(blocks)

    def due(self, now_ns: int) -> tuple[int, list[int]] | None:
        """(first ledger block, `reading.code_of` of it and those behind it) of the next stretch, None before its time."""
        if now_ns < self.due_ns:
            return None
        start, self.due_ns = self._next, now_ns + self._rest_ns
        part = self._blocks[start : start + self._count]
        self._next = start + self._count if start + self._count < len(self._blocks) else 1
        return start - 1, [
            (b.ref_cnt << 2) | (b.next_free_block is not None and (3 if b.block_hash is not None else 2)) for b in part
        ]
