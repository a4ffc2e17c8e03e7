"""The summary of a request that is over, however it ended: one record of the ledger's ring. Changes no slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import SUMMARY, SUMMARY_FIELDS
from kvledger.writer import Ledger

_COLUMNS = {"finished_ns": "finishing_ns"}
"""The request slot's name of a summary's field, where it is another one."""
_RELEASED_BLOCKS = SUMMARY_FIELDS.index("released_blocks")


class Summaries:
    """Writes summaries from request slots, whose `finishing_ns` and `finish_reason` are set."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._fields = [self._field(name) for name in SUMMARY_FIELDS]

    def write(self, slot: int, released_blocks: int) -> None:
        """The request in `slot` is over and has given back so many blocks."""
        fields = [field(slot) for field in self._fields]
        fields[_RELEASED_BLOCKS] = released_blocks
        self._ledger.summary(tuple(fields))

    def _field(self, name: str) -> Callable[[int], Any]:
        """What reads a summary's field from a request slot. Element reads: most ends come one by one."""
        if name == "seq":
            return lambda _: self._ledger.seq
        if name == "released_ns":
            return lambda _: self._ledger.clock.now_ns()
        column: NDArray[Any] | None = getattr(self._ledger.slots, _COLUMNS.get(name, name), None)
        if column is None:
            nothing = np.zeros((), SUMMARY[name]).tobytes()
            return lambda _: nothing
        return column.item if column.ndim == 1 else lambda slot: column[slot].tobytes()
