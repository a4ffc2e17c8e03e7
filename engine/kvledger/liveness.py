"""Who writes a ledger, as the kernel knows it: a POSIX record lock held for the writer's life.

A record lock is seen across containers and pid namespaces and dies with its holder. It also dies when *any* descriptor
of the file is closed in the holder's process, so this module remembers which files the process writes.
"""

from __future__ import annotations

import fcntl
import os
import struct

FileId = tuple[int, int]
_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
_written_here: set[FileId] = set()


def file_id(fd: int) -> FileId:
    """(device, inode) of an open file."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def take(fd: int) -> bool:
    """Take the writer's lock; False when another process holds it."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    _written_here.add(file_id(fd))
    return True


def forget(fd: int) -> None:
    """Called by the writer just before it closes `fd` for good."""
    _written_here.discard(file_id(fd))


def is_own(file: FileId) -> bool:
    """Whether this very process writes the file (its own lock is invisible to `holder_pid`)."""
    return file in _written_here


def holder_pid(fd: int) -> int | None:
    """Pid of the process that holds the writer's lock, None when nobody does. 0 or negative for another namespace."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, query))
    return None if answer[0] == fcntl.F_UNLCK else int(answer[4])
