"""The way from the tap to the mirror: a ring of bytes in shared memory, written by one process and read by another.

No system call while the reader is awake. A message is a header (length, checksum) and its bytes; it exists once
`written` has moved behind it. The checksum, which begins with the message's number, is for machines on which another
core may see the two in the other order. Positions only grow; `base` is the one that lies at the ring's beginning.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from contextlib import suppress
from typing import Any, Self

from kvledger_vllm import kernel

CHANNEL_BYTES = 16 << 20
"""Room for what a mirror that stands still has not read."""
_BYTES_A_BLOCK = 16
"""Room for a statement of a whole pool and the tables that name its blocks, some 5 bytes for each time."""
_HEAD_BYTES, _FRAME = 4096, struct.Struct("<II")
_WRITTEN, _READ, _ASLEEP, _SENT, _APPLIED, _WANTED, _BASE = range(7)
_SKIP = _MOST = 0xFFFFFFFF
_HOT_BYTES = 64 << 10


class Channel:
    """The shared memory and the words at its beginning. `bell` is an eventfd that wakes a reader that sleeps."""

    def __init__(self, memory: int, bell: int) -> None:
        self.memory, self.bell = memory, bell
        size = os.fstat(memory).st_size
        self._map = mmap.mmap(memory, size)
        self._words: Any = memoryview(self._map)[:_HEAD_BYTES].cast("q")
        self._data, self.size = memoryview(self._map)[_HEAD_BYTES:], size - _HEAD_BYTES

    @classmethod
    def create(cls, size: int | None = None, *, blocks: int = 0) -> Self:
        """A ring of so many bytes, or with room to tell of a pool of so many blocks: what was never used takes none.

        Both descriptors are closed in children that are not meant to have them.
        """
        memory = kernel.memory(_HEAD_BYTES + (size or max(CHANNEL_BYTES, _BYTES_A_BLOCK * blocks)))
        return cls(memory, os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def close(self) -> None:
        """Give both descriptors and the memory back, as far as this process has them."""
        for view in (self._words, self._data):
            view.release()
        self._map.close()
        for descriptor in (self.memory, self.bell):
            os.close(descriptor)

    @property
    def sent(self) -> int:
        """Messages that were written."""
        count: int = self._words[_SENT]
        return count

    @property
    def applied(self) -> int:
        """Messages that the reader has done with."""
        count: int = self._words[_APPLIED]
        return count

    @property
    def wanted(self) -> int:
        """How often the reader has asked for a statement of everything."""
        count: int = self._words[_WANTED]
        return count


class Sender(Channel):
    """The writer's end."""

    def send(self, message: bytes) -> bool:
        """Write one message; False, with nothing written, where there is no room for it. Never blocks."""
        words, data, size = self._words, self._data, self.size
        written, read = words[_WRITTEN], words[_READ]
        if written == read and written - words[_BASE] > _HOT_BYTES:
            # Nothing waits to be read: begin again, in memory that the processor's caches still hold.
            words[_BASE] = written
        at, length = (written - words[_BASE]) % size, len(message)
        end = at + _FRAME.size + length
        if end > size:
            # A message lies in one piece: what is left of the ring is passed over.
            if size - at >= _FRAME.size:
                _FRAME.pack_into(data, at, _SKIP, 0)
            written += size - at
            at, end = 0, _FRAME.size + length
        if written + _FRAME.size + length - read > size:
            return False
        data[at + _FRAME.size : end] = message
        number = words[_SENT]
        _FRAME.pack_into(data, at, length, zlib.crc32(message, number & _MOST))
        words[_SENT] = number + 1
        words[_WRITTEN] = written + _FRAME.size + length
        if words[_ASLEEP]:
            self.ring()
        return True

    def ring(self) -> None:
        """Wake the reader: it applies now what it would have applied a little later."""
        os.eventfd_write(self.bell, 1)


class Receiver(Channel):
    """The reader's end."""

    def __init__(self, memory: int, bell: int) -> None:
        super().__init__(memory, bell)
        self._at, self._taken = self._words[_READ], self._words[_APPLIED]

    def take(self) -> bytes | None:
        """The next message, None where there is none yet. Those that were taken keep their room until `done`."""
        words, data, size = self._words, self._data, self.size
        while (read := self._at) < words[_WRITTEN]:
            at = (read - words[_BASE]) % size
            if size - at < _FRAME.size:
                self._at = read + size - at
                continue
            length, checksum = _FRAME.unpack_from(data, at)
            if length == _SKIP:
                self._at = read + size - at
                continue
            message = bytes(data[at + _FRAME.size : at + _FRAME.size + length])
            if zlib.crc32(message, self._taken & _MOST) != checksum:
                return None
            self._at, self._taken = read + _FRAME.size + length, self._taken + 1
            return message
        return None

    def done(self) -> None:
        """Every message that was taken is in the ledger."""
        self._words[_READ], self._words[_APPLIED] = self._at, self._taken

    def want_all(self) -> None:
        """Ask for a statement of everything."""
        self._words[_WANTED] += 1

    def nap(self, writer: int, seconds: float) -> None:
        """Wait that long, or until the bell is rung, or the process of pidfd `writer` has ended."""
        kernel.ready(seconds, self.bell, writer)
        with suppress(BlockingIOError):
            os.eventfd_read(self.bell)

    def asleep(self, whether: bool) -> None:
        """Whether the bell has to be rung from now on. Look once more after this is true."""
        self._words[_ASLEEP] = int(whether)
