"""Rings of fixed records: the writer's end, and the reader's arithmetic of what was overwritten.

Record i lies at slot i mod size. The writer moves `reserved` before it stores and `head` after, so a reader that looks
at both around its copy knows exactly which records it may trust and how many it lost.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX

_CODES = {"u1": "B", "u2": "H", "i2": "h", "i4": "i", "u8": "Q", "i8": "q", "f8": "d"}


class RingWriter:
    """The only writer of one ring. `control` is the ledger's control section.

    Records are packed into plain memory, a summary in a third of the time of numpy's conversion; a drill's hooked
    arrays, which must see every store, are stored into as arrays. `pack_into` blanks a record before it fills it: here
    alone that is harmless, since no reader trusts a record that is reserved and not yet counted.
    """

    __slots__ = ("_control", "_head", "_memory", "_packer", "_records", "_reserved", "_size")

    def __init__(self, records: NDArray[Any], control: NDArray[np.int64], name: str) -> None:
        self._records, self._size, self._packer = records, len(records), packer(records.dtype)
        plain = type(records) is np.ndarray
        self._memory = records.view(np.uint8).data if plain else None
        self._control: Any = control.data if plain else control
        self._reserved, self._head = CONTROL_INDEX[f"{name}_reserved"], CONTROL_INDEX[f"{name}_head"]

    def append(self, record: tuple[Any, ...]) -> None:
        """Store one record: its fields in order, those that are arrays as bytes. `struct.error` if one does not fit."""
        control, packed = self._control, self._packer
        head = int(control[self._head])
        control[self._reserved] = head + 1
        if self._memory is not None:
            packed.pack_into(self._memory, head % self._size * packed.size, *record)
        else:
            self._records[head % self._size] = np.frombuffer(packed.pack(*record), self._records.dtype)[0]
        control[self._head] = head + 1


def packer(dtype: np.dtype[Any]) -> struct.Struct:
    """What packs a record of a structured dtype without gaps: numbers as such, all else (strings, arrays) as bytes."""
    fields = [dtype[name] for name in dtype.names or ()]
    packed = struct.Struct("<" + "".join(_CODES.get(field.str[1:], f"{field.itemsize}s") for field in fields))
    assert packed.size == dtype.itemsize, f"{dtype} has gaps"
    return packed


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
