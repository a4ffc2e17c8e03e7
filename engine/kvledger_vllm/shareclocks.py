"""Share clocks of mirrored blocks: a block's second split among its holders. Owns `block.share_clock` and its time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvledger.clock import NS_PER_SECOND
from kvledger.writer import Ledger


class ShareClocks:
    """The clocks of all blocks, read and advanced for those that change."""

    def __init__(self, ledger: Ledger) -> None:
        blocks = ledger.blocks
        self._ledger = ledger
        self._columns: tuple[Any, ...] = (blocks.share_clock.data, blocks.share_since_ns.data, blocks.ref_count.data)

    def advance(self, blocks: Iterable[int]) -> None:
        """Bring the clocks of blocks up to now, by the references that the ledger still shows."""
        clock, since, references = self._columns
        now = self._ledger.now_ns
        for block in blocks:
            if (holders := references[block]) > 0:  # nobody holds it: its clock stands
                clock[block] += (now - since[block]) / NS_PER_SECOND / holders
            since[block] = now

    def start(self, blocks: Iterable[int]) -> None:
        """Blocks are allocated: their clocks begin at 0."""
        clock, since, _ = self._columns
        now = self._ledger.now_ns
        for block in blocks:
            clock[block], since[block] = 0.0, now

    def total(self, blocks: Iterable[int]) -> float:
        """Seconds on the clocks of blocks now, together."""
        clock, since, references = self._columns
        now, seconds = self._ledger.now_ns, 0.0
        for block in blocks:
            seconds += clock[block]
            if (holders := references[block]) > 0:
                seconds += (now - since[block]) / NS_PER_SECOND / holders
        return seconds
