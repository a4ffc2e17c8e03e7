"""The comparison that proves the mirror: what blocks and requests say of themselves against the ledger, some each time.

Whatever differs was changed by a way no hook sees. It is put right, counted and logged; never ignored.
"""

from __future__ import annotations

import logging

from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_vllm.mirror import Mirror

logger = logging.getLogger("vllm.kvledger")

_LOGGED = 10
_CORRECTED = CONTROL_INDEX["mirror_corrections"]


class RollingScan:
    """Compares stretches of blocks, and counts everything that had to be put right."""

    def __init__(self, ledger: Ledger, mirror: Mirror) -> None:
        self._ledger, self._mirror, self._logged = ledger, mirror, 0

    def differing(self, stretch: tuple[int, list[int]] | None, *, unchanged: bool) -> list[int]:
        """Rows of the blocks of a stretch that differ from the ledger; `unchanged` as `Mirror.differing` has it."""
        if stretch is None:
            return []
        rows = self._mirror.differing(*stretch, unchanged=unchanged)
        if rows:
            self.corrected(len(rows) // 2, f"block(s) changed by no way it hooks, first vLLM block {rows[0] + 1}")
        return rows

    def corrected(self, count: int, what: str) -> None:
        """So many things were wrong in the ledger, and are put right."""
        self._ledger.control[_CORRECTED] += count
        if self._logged < _LOGGED:
            self._logged += 1
            logger.warning("%d %s: ledger corrected", count, what)
