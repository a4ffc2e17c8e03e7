"""Memory that readers copy into, used again at every look and shared by the ledgers one thread reads in turn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.head import Head
from kvledger.source import Source

FEW_ROWS = 512  # reading this many values one by one costs as much as reading a section of a million
WINDOW_ROWS = 1 << 15


class Buffers:
    """Named byte buffers that only grow. Bytes handed out lie in their buffer until the name is asked for again.

    Readers that share one `Buffers` hold one copy of the largest ledger instead of one copy each; whatever they hand
    out as borrowed is then valid until the next look at any of them.
    """

    def __init__(self) -> None:
        self._held: dict[str, NDArray[np.uint8]] = {}

    def take(self, name: str, nbytes: int) -> NDArray[np.uint8]:
        """Uninitialised bytes in the buffer `name`."""
        held = self._held.get(name)
        if held is None or len(held) < nbytes:
            held = self._held[name] = np.empty(nbytes, np.uint8)
        return held[:nbytes]

    @property
    def nbytes(self) -> int:
        """Bytes reserved by all buffers; pages of them that were never touched take no memory."""
        return sum(len(held) for held in self._held.values())


class Sections:
    """Sections of one ledger, copied whole or in part into buffers. Knows where bytes lie, not what they mean."""

    def __init__(self, source: Source, head: Head, buffers: Buffers) -> None:
        self.source, self.head, self._buffers = source, head, buffers

    def read(self, name: str, rows: int | None = None, *, start: int = 0, buffer: str | None = None) -> NDArray[Any]:
        """Rows [start, start + rows) of a section, all by default; borrowed. Raises `Truncated`."""
        section = self.head.sections[name]
        rows = section.shape[0] - start if rows is None else rows
        assert 0 <= start <= start + rows <= section.shape[0], (name, start, rows)
        shape = (rows, *section.shape[1:])
        row_bytes = math.prod(shape[1:]) * section.dtype.itemsize
        target = self._buffers.take(buffer or name, rows * row_bytes)
        if rows:
            self.source.read_into(section.offset + start * row_bytes, target)
        return target.view(section.dtype).reshape(shape)

    def refresh(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """A whole section, of which only rows [start, stop) are read now: the others hold anything. Borrowed."""
        section = self.head.sections[name]
        row_bytes = section.nbytes // section.shape[0]
        target = self._buffers.take(name, section.nbytes)
        if stop > start:
            self.source.read_into(section.offset + start * row_bytes, target[start * row_bytes : stop * row_bytes])
        return target.view(section.dtype).reshape(section.shape)

    def scratch(self, name: str, rows: int, dtype: Any) -> NDArray[Any]:
        """Room for a working array of one value a row, holding anything. Borrowed."""
        return self._buffers.take(name, rows * np.dtype(dtype).itemsize).view(dtype)

    def control(self) -> dict[str, int]:
        """The control words as they are now, by name."""
        words = self.read("control").tolist()
        return {name: words[index] for name, index in self.head.control.items()}

    def values(self, name: str, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Some rows of a 1-D section, a copy. One by one if they are few, out of windows that hold them if not."""
        if len(rows) > FEW_ROWS:
            return self._out_of_windows(name, rows)
        section = self.head.sections[name]
        values, size = np.empty(len(rows), section.dtype), section.dtype.itemsize
        for row, target in zip(rows.tolist(), values.view(np.uint8).reshape(-1, size), strict=True):
            assert 0 <= row < section.shape[0], (name, row)
            self.source.read_into(section.offset + row * size, target)
        return values

    def _out_of_windows(self, name: str, rows: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Values of a section that is read window by window: a window stays in the processor's cache."""
        section, order = self.head.sections[name], np.argsort(rows, kind="stable")
        ascending = rows[order].astype(np.intp)
        assert 0 <= ascending[0] <= ascending[-1] < section.shape[0], (name, ascending[0], ascending[-1])
        found, first = np.empty(len(rows), section.dtype), 0
        while first < len(rows):
            start = int(ascending[first])
            last = int(np.searchsorted(ascending, start + WINDOW_ROWS))
            window = self.read(name, int(ascending[last - 1]) + 1 - start, start=start, buffer="window")
            found[first:last] = window[ascending[first:last] - start]
            first = last
        values = np.empty_like(found)
        values[order] = found
        return values
