"""Rings of fixed records: the writer's end, and the reader's arithmetic of what was overwritten.

Record i lies at slot i mod size. The writer moves `reserved` before it stores and `head` after, so a reader that looks
at both around its copy knows exactly which records it may trust and how many it lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX


class RingWriter:
    """The only writer of one ring. `control` is the ledger's control section."""

    __slots__ = ("_control", "_head", "_records", "_reserved", "_size")

    def __init__(self, records: NDArray[Any], control: NDArray[np.int64], name: str) -> None:
        self._records, self._control, self._size = records, control, len(records)
        self._reserved, self._head = CONTROL_INDEX[f"{name}_reserved"], CONTROL_INDEX[f"{name}_head"]

    def append(self, records: NDArray[Any]) -> None:
        """Store a 1-D array of records of the ring's dtype; only the last `size` of them can stay."""
        head, count = int(self._control[self._head]), len(records)
        self._control[self._reserved] = head + count
        first = head % self._size
        if first + count <= self._size:
            self._records[first : first + count] = records
        else:
            kept = records[-self._size :]
            oldest = head + count - len(kept)
            self._records[np.arange(oldest, oldest + len(kept)) % self._size] = kept
        self._control[self._head] = head + count

    def append_one(self, record: tuple[Any, ...]) -> None:
        """Store one record, its fields in order."""
        head = int(self._control[self._head])
        self._control[self._reserved] = head + 1
        self._records[head % self._size] = record
        self._control[self._head] = head + 1


@dataclass(frozen=True, slots=True)
class RingWindow:
    """What one look at a ring yields: records [first, first + len(records)) and how many before them were lost."""

    records: NDArray[Any]
    first: int
    lost: int

    @property
    def next(self) -> int:
        """Where the following look continues."""
        return self.first + len(self.records)


def trusted(copy: NDArray[Any], *, since: int, head_before: int, reserved_after: int) -> RingWindow:
    """The records of a ring's copy from `since` on that were complete and not overwritten while it was copied.

    `head_before` was read before the copy and `reserved_after` after it. A `since` beyond the head (another epoch, or
    damage) starts over at the oldest record there is.
    """
    size, head_before = len(copy), max(head_before, 0)
    if not 0 <= since <= head_before:
        since = 0
    first = min(max(since, head_before - size, reserved_after - size), head_before)
    slots = np.arange(first, head_before) % size
    return RingWindow(copy[slots], first, first - since)
