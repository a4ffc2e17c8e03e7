"""The ledger file: create it safely, name it, find its predecessors, map it. Knows bytes, not what they mean.

Readers never come through here: they use `os.pread`, since a mapping dies with SIGBUS when a file is truncated.
"""

from __future__ import annotations

import errno
import fcntl
import math
import mmap
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger import liveness
from kvledger.errors import AlreadyWritten, NoSpace, NotMemory
from kvledger.layout import BYTE_ORDER_MARK, CRC_OFFSET, HEADER, HEADER_BYTES, MAGIC, MAJOR, MINOR, Layout
from kvledger.recording import is_recording

SUFFIX = ".kvledger"
_NAME = re.compile(r"(?P<engine>.+)\.(?P<rank>\d+)\.(?P<epoch>\d{8,})\.kvledger")
DIRECTORY_MODE, FILE_MODE = 0o2750, 0o640


def ledger_path(directory: Path, engine: str, rank: int, epoch: int) -> Path:
    """Where the ledger of one engine start lies."""
    return directory / f"{engine}.{rank}.{epoch:08d}{SUFFIX}"


def parse_name(path: Path) -> tuple[str, int, int] | None:
    """(engine, rank, epoch) from a ledger's file name, None for any other name."""
    match = _NAME.fullmatch(path.name)
    return (match["engine"], int(match["rank"]), int(match["epoch"])) if match else None


def epochs(directory: Path, engine: str, rank: int) -> list[tuple[int, Path]]:
    """(epoch, path) of the ledgers of one (engine, rank), oldest first. A recording is none, whatever its name."""
    found = []
    for path in directory.iterdir():
        name = parse_name(path)
        if name and name[:2] == (engine, rank) and not is_recording(path):
            found.append((name[2], path))
    return sorted(found)


def filesystem_type(path: Path) -> str:
    """Type of the file system a directory lies on, from /proc/self/mountinfo; 'unknown' if it is not listed."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if left.split()[2] == wanted:
            return right.split()[0]
    return "unknown"


def prepare_directory(directory: Path, *, allow_disk: bool) -> None:
    """Make the directory (2750) if it is missing. Raises `NotMemory` off tmpfs, unless disk is allowed."""
    if not directory.exists():
        directory.mkdir(parents=True)
        directory.chmod(DIRECTORY_MODE)
    kind = filesystem_type(directory)
    if kind not in ("tmpfs", "ramfs") and not allow_disk:
        raise NotMemory(
            f"{directory} is on {kind}: a store to a mapped disk file can stall the engine for hundreds of ms. "
            "Use a directory on tmpfs (/dev/shm, emptyDir medium: Memory) or allow disk explicitly."
        )


@contextmanager
def creation_lock(directory: Path, engine: str, rank: int) -> Iterator[None]:
    """Serialises starts of one (engine, rank), so that two cannot both find no live writer."""
    fd = os.open(directory / f".{engine}.{rank}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def refuse_second_writer(directory: Path, engine: str, rank: int) -> None:
    """Raises `AlreadyWritten`, naming the file, when any ledger of (engine, rank) has a live writer."""
    for _, path in epochs(directory, engine, rank):
        if (pid := writer_of(path)) is not None:
            raise AlreadyWritten(
                f"{path} is being written by process {pid}: stop that engine, or use another name or rank"
            )


def writer_of(path: Path) -> int | None:
    """Pid of the live writer of a ledger (this process included), None when there is none."""
    status = path.stat()
    if liveness.is_own((status.st_dev, status.st_ino)):
        return os.getpid()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return liveness.holder_pid(fd)
    finally:
        os.close(fd)


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def boot_id() -> bytes:
    """The 16 bytes of this boot's random id."""
    return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))


def header_bytes(layout: Layout, *, epoch: int, virtual_clock: bool, created_wall_ns: int) -> bytes:
    """The header page and self-description, checksum included."""
    header = np.zeros((), HEADER)
    header["magic"], header["major"], header["minor"] = MAGIC, MAJOR, MINOR
    header["byte_order"], header["file_bytes"] = BYTE_ORDER_MARK, layout.file_bytes
    header["description_offset"], header["description_bytes"] = HEADER_BYTES, len(layout.description)
    header["epoch"], header["boot_id"] = epoch, np.void(boot_id())
    header["pid"], header["pid_start_ticks"] = os.getpid(), start_ticks(os.getpid())
    header["created_wall_ns"], header["clock"] = created_wall_ns, int(virtual_clock)
    body = header.tobytes()[:CRC_OFFSET]
    header["crc32"] = zlib.crc32(layout.description, zlib.crc32(body))
    return header.tobytes().ljust(HEADER_BYTES, b"\0") + layout.description


def section_view(memory: mmap.mmap, layout: Layout, name: str) -> NDArray[Any]:
    """A view of one section in a mapping laid out by `layout`."""
    section = layout.sections[name]
    flat = np.frombuffer(memory, section.dtype, count=math.prod(section.shape), offset=section.offset)
    return flat.reshape(section.shape)


def remove_unfinished(directory: Path, layout: Layout) -> None:
    """Remove what starts of this (engine, rank) that died before `reveal` left behind. Needs the creation lock."""
    for path in directory.glob(f"{temporary_prefix(layout)}*"):
        path.unlink(missing_ok=True)


def temporary_prefix(layout: Layout) -> str:
    """Prefix of the file names under which ledgers of one (engine, rank) are prepared."""
    return f".new-{layout.limits.engine}.{layout.limits.rank}-"


class Segment:
    """A ledger file open for writing: descriptor, mapping and lock. Made under a temporary name, shown by `reveal`."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self.layout = layout
        self.path: Path | None = None
        self.fd, name = tempfile.mkstemp(prefix=temporary_prefix(layout), dir=directory)
        self._temporary = Path(name)
        try:
            self._allocate(directory)
        except BaseException:
            self._temporary.unlink(missing_ok=True)
            os.close(self.fd)
            raise
        self.map = mmap.mmap(self.fd, layout.file_bytes)

    def _allocate(self, directory: Path) -> None:
        os.fchmod(self.fd, FILE_MODE)
        try:
            # A sparse file on a full tmpfs kills the writer with SIGBUS at a store; fallocate fails here instead.
            os.posix_fallocate(self.fd, 0, self.layout.file_bytes)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            room = os.statvfs(directory)
            raise NoSpace(
                f"{directory} has {room.f_bavail * room.f_frsize:,} bytes free, the ledger needs "
                f"{self.layout.file_bytes:,}: "
                "enlarge the tmpfs or lower capacity_blocks or max_requests"
            ) from error
        if not liveness.take(self.fd):
            raise AlreadyWritten(f"{self._temporary}: another process locked it; remove it and start again")

    def array(self, name: str) -> NDArray[Any]:
        """A writable view of a section."""
        return section_view(self.map, self.layout, name)

    def reveal(self, path: Path, head: bytes) -> None:
        """Store the header and rename the file to `path`: from here on readers see it, complete.

        Raises `AlreadyWritten` where somebody has put a recording.
        """
        if is_recording(path):
            raise AlreadyWritten(f"{path} is a recording in the place of the new ledger: move it elsewhere")
        self.map[: len(head)] = head
        os.rename(self._temporary, path)
        self.path = path

    def discard(self) -> None:
        """Give up a segment that was never revealed."""
        self._temporary.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Drop the lock. The mapping lives on while views of it do, so the descriptor is the mapping's to keep."""
        liveness.forget(self.fd)
        fcntl.lockf(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)
