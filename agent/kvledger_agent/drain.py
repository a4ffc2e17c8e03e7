"""The rings of a ledger, drained every sample into a bounded private history, with exact losses.

Rings are overwritten within seconds under load; evidence about requests that have ended lives on here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.ring import RingWindow

KEPT_RECORDS = 1 << 16


class Drain:
    """One ring: what was read of it, in order, the last `kept` records at least.

    `lost` counts records overwritten before this drain read them. What was overwritten before its first look was never
    its to read and is not counted.
    """

    __slots__ = ("_chunks", "_fetch", "_held", "_kept", "_next", "lost")

    def __init__(self, fetch: Callable[[int], RingWindow], *, kept: int = KEPT_RECORDS) -> None:
        self._fetch, self._kept = fetch, kept
        self._chunks: deque[NDArray[Any]] = deque()
        self._held = 0
        self._next: int | None = None
        self.lost = 0

    def pull(self) -> int:
        """Read what is new. Returns how many records that were. Raises what the reader raises."""
        first_look = self._next is None
        window = self._fetch(self._next or 0)
        if not first_look:
            self.lost += window.lost
        self._next = window.next
        if len(window.records):
            self._chunks.append(window.records)
            self._held += len(window.records)
        while self._chunks and self._held - len(self._chunks[0]) >= self._kept:
            self._held -= len(self._chunks.popleft())
        return len(window.records)

    def records(self) -> NDArray[Any] | None:
        """All records held, oldest first, as one array; None when there are none."""
        if not self._chunks:
            return None
        if len(self._chunks) > 1:
            joined = np.concatenate(tuple(self._chunks))
            self._chunks.clear()
            self._chunks.append(joined)
        return self._chunks[0]
