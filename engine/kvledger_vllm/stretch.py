"""The rolling statement of the pool: what a few blocks say of themselves, stretch by stretch, all of them in turn."""

from __future__ import annotations

from typing import Any

from kvledger_vllm.reading import codes_of

ROUND_NS = 10_000_000_000
MOST_BLOCKS = 64
_FEWEST_SHARE = 16


class Stretch:
    """Goes round the pool once in `ROUND_NS`, where no more than `MOST_BLOCKS` a publication are needed for it.

    Not before a sixteenth of the pool is due, if that is less: one stretch costs little more than one block.
    """

    def __init__(self, blocks: list[Any]) -> None:
        self._blocks, self._next = blocks, 1
        self._count = max(1, min(MOST_BLOCKS, len(blocks) // _FEWEST_SHARE))
        self._rest_ns = self._count * ROUND_NS // len(blocks)
        self.due_ns = 0
        """From when on there is a stretch to tell of."""

    def due(self, now_ns: int) -> tuple[int, list[int]] | None:
        """First ledger block and the codes of the next stretch, None before its time."""
        if now_ns < self.due_ns:
            return None
        start, self.due_ns = self._next, now_ns + self._rest_ns
        part = self._blocks[start : start + self._count]
        self._next = start + self._count if start + self._count < len(self._blocks) else 1
        return start - 1, codes_of(part)
