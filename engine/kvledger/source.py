"""Where a ledger's bytes come from: a file read with `pread`, or memory. Checks the file, never what is in it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvledger import liveness
from kvledger.errors import NotALedger, NotPermitted, SameProcess, Truncated


class Source(Protocol):
    """Random access to a ledger's bytes."""

    def size(self) -> int:
        """Bytes there are now."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises `Truncated`."""

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """Fill a 1-D byte array. Raises `Truncated`."""

    def writer_pid(self) -> int | None:
        """Pid of the live writer, None when there is none."""

    def close(self) -> None:
        """Give the source back."""


class MemorySource:
    """A ledger in memory: a writer's own image, or, with `writer_lives` false, what a writer left behind."""

    def __init__(self, data: memoryview | bytes, *, writer_lives: bool = True) -> None:
        self._data = memoryview(data)
        self._writer_pid = os.getpid() if writer_lives else None

    def size(self) -> int:
        """Bytes held."""
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        """See `Source.read`."""
        if offset < 0 or offset + length > len(self._data):
            raise Truncated(f"bytes {offset}..{offset + length} lie beyond the {len(self._data)} there are")
        return bytes(self._data[offset : offset + length])

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """See `Source.read_into`."""
        if offset < 0 or offset + len(target) > len(self._data):
            raise Truncated(f"bytes {offset}..{offset + len(target)} lie beyond the {len(self._data)} there are")
        target[:] = np.frombuffer(self._data[offset : offset + len(target)], np.uint8)

    def writer_pid(self) -> int | None:
        """See `Source.writer_pid`."""
        return self._writer_pid

    def close(self) -> None:
        """Nothing to give back."""


class FileSource:
    """A ledger file opened read-only, refused when it is a symlink, no regular file, foreign, or our own.

    Raises `NotPermitted`, `NotALedger` or `SameProcess`; a missing file raises `FileNotFoundError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._refuse_own(path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # NONBLOCK: a FIFO must not hang us
        try:
            self._fd = os.open(path, flags)
        except PermissionError as error:
            raise NotPermitted(
                f"{path}: not readable by uid {os.geteuid()}: "
                "run the reader under the engine's uid or in the ledger directory's group"
            ) from error
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise NotALedger(f"{path}: a symbolic link or a socket, not a ledger file") from error
            raise
        try:
            self._check()
        except BaseException:
            os.close(self._fd)
            raise

    @staticmethod
    def _refuse_own(path: Path) -> None:
        # Decided before the open: closing any descriptor of the file would drop this process's writer lock.
        try:
            status = os.lstat(path)
        except PermissionError as error:
            raise NotPermitted(f"{path}: uid {os.geteuid()} may not enter its directory") from error
        if liveness.is_own((status.st_dev, status.st_ino)):
            raise SameProcess(f"{path} is written by this process: read it from another one, or use Ledger.image")

    def _check(self) -> None:
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise NotALedger(f"{self.path}: not a regular file; name a ledger, ENGINE.RANK.EPOCH.kvledger")
        mine = os.geteuid() in (0, status.st_uid) or status.st_gid in {os.getegid(), *os.getgroups()}
        if not mine:
            raise NotPermitted(
                f"{self.path}: owned by uid {status.st_uid}, gid {status.st_gid}, neither of which this process has: "
                "add it to the ledger directory's group"
            )

    def size(self) -> int:
        """Size of the file now."""
        return os.fstat(self._fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        """See `Source.read`."""
        data = os.pread(self._fd, length, offset)
        if len(data) != length:
            raise Truncated(f"{self.path}: {len(data)} of {length} bytes at offset {offset}: the file was cut short")
        return data

    def read_into(self, offset: int, target: NDArray[np.uint8]) -> None:
        """See `Source.read_into`. One `preadv` for anything below 2 GiB."""
        got = os.preadv(self._fd, [target.data], offset)
        if got != len(target):
            raise Truncated(f"{self.path}: {got} of {len(target)} bytes at offset {offset}: the file was cut short")

    def writer_pid(self) -> int | None:
        """See `Source.writer_pid`."""
        return liveness.holder_pid(self._fd)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
