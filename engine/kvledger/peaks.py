"""Peaks: the most blocks that were active, and active or cached, in each of the last seconds.

Owns the ring of seconds in the ledger: a second's record lies at its number modulo their count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger import stores
from kvledger.clock import NS_PER_SECOND
from kvledger.stores import Hook


class Peaks:
    """The peaks of one ledger, as its publications end."""

    def __init__(self, records: NDArray[Any], hook: Hook | None) -> None:
        self._records = records
        self._words = stores.words(records.view(np.int32), hook)  # four of them a record, see `PEAK`
        self._until_ns, self._at, self._active, self._used = 0, 0, -1, -1

    def note(self, now_ns: int, active: float, used: float) -> None:
        """So many blocks are active, and active or cached, now: a new second's first, or more than before in it."""
        if active > self._active or used > self._used or now_ns >= self._until_ns:
            self._note(now_ns, int(active), int(used))

    def _note(self, now_ns: int, active: int, used: int) -> None:
        if now_ns < self._until_ns:
            # `used` first: it is never less than `active`.
            if used > self._used:
                self._words[self._at + 3] = self._used = used
            if active > self._active:
                self._words[self._at + 2] = self._active = active
            return
        second = now_ns // NS_PER_SECOND
        slot = second % len(self._records)
        self._until_ns, self._at = (second + 1) * NS_PER_SECOND, 4 * slot
        self._active, self._used = active, used
        self._records[slot] = (second, active, used)
