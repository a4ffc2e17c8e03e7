"""Saves a ledger at an instant into a file of its own, which the same `Reader` opens. Never writes to the ledger.

A recording is complete or not there: it is prepared under a temporary name, flushed to disk and then given its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import BadTarget, LedgerUnwritable, NoSpace
from kvledger.image import Image
from kvledger.layout import CRC_OFFSET, HEADER, HEADER_BYTES
from kvledger.reader import Reader
from kvledger.recording import BLOCK_BYTES, BLOCK_OFFSET, RECORDING_MAGIC, Recording, block_bytes, is_recording
from kvledger.segment import FILE_MODE, SUFFIX
from kvledger.source import MemorySource

PAGE_BYTES = 4096
PIECE_PAGES = 256
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What was saved. `bytes` is the length of the file, of which pages of zeros take no room on disk."""

    path: Path
    bytes: int
    engine: str
    rank: int
    epoch: int
    published_seq: int
    recording: Recording


def record(ledger: Reader | Path, target: Path, *, force: bool = False) -> Saved:
    """Save a ledger, live or left behind, as it is now. Takes as much memory as the ledger has bytes while it copies.

    `force` replaces an earlier recording at `target`, and nothing else.

    Raises `BadTarget` (something is there, or would be taken for a ledger), `NoSpace`, another `LedgerUnwritable`, a
    `LedgerUnreadable` for the ledger, or `FileNotFoundError` if there is none.
    """
    if isinstance(ledger, Path):
        with Reader.open(ledger) as reader:
            return record(reader, target, force=force)
    if ledger.head.recording is not None:
        raise BadTarget("the ledger to save is a recording already: copy the file")
    _check_target(target, force=force)
    image = Image(ledger.source, ledger.head)
    head_bytes = int(min(section.offset for section in ledger.head.sections.values()))
    ledger.source.read_into(0, image.data[:head_bytes])
    image.take()
    recording = _seal(image)
    _write(image.data, target, force=force)
    limits = ledger.head.limits
    return Saved(
        path=target,
        bytes=len(image.data),
        engine=limits.engine,
        rank=limits.rank,
        epoch=ledger.head.epoch,
        published_seq=image.published_seq,
        recording=recording,
    )


# -- what makes the copy a recording --------------------------------------------------------------------------------


class _Instant(MemorySource):
    """The copy, with the writer that the ledger had."""

    def __init__(self, image: Image) -> None:
        super().__init__(image.data.data)
        self._writer_pid = image.writer_pid


def _seal(image: Image) -> Recording:
    """Give the copy its magic, the time and status of its instant, and its checksums."""
    with Reader.over(_Instant(image)) as reader:
        sample = reader.sample(image.monotonic_ns)
    recording = Recording(
        status=sample.status.value,
        wall_ns=image.wall_ns,
        monotonic_ns=image.monotonic_ns,
        now_ns=sample.now_ns,
        heartbeat_age_seconds=sample.heartbeat_age_seconds,
        blocks_in_motion=image.blocks_in_motion,
        requests_in_motion=image.requests_in_motion,
        body_crc32=zlib.crc32(image.data.data[HEADER_BYTES:]),
    )
    header = image.data[: HEADER.itemsize].view(HEADER)
    header["magic"] = RECORDING_MAGIC
    start, length = int(header["description_offset"][0]), int(header["description_bytes"][0])
    description = image.data.data[start : start + length]
    header["crc32"] = zlib.crc32(description, zlib.crc32(image.data.data[:CRC_OFFSET]))
    image.data[BLOCK_OFFSET : BLOCK_OFFSET + BLOCK_BYTES] = np.frombuffer(block_bytes(recording), np.uint8)
    return recording


# -- the file -------------------------------------------------------------------------------------------------------


def _check_target(target: Path, *, force: bool) -> None:
    if target.name.endswith(SUFFIX):
        raise BadTarget(
            f"{target}: names ending in {SUFFIX} are for live ledgers; name the recording {target.stem}.kvrecording"
        )
    if not os.path.lexists(target):
        return
    if not force:
        raise BadTarget(f"{target} is there already: choose another name, or replace it with --force")
    if not is_recording(target):
        raise BadTarget(f"{target} is no recording, and nothing else is replaced: choose another name")


def _write(data: NDArray[np.uint8], target: Path, *, force: bool) -> None:
    try:
        fd, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        temporary = Path(name)
        try:
            _fill(fd, data)
            _reveal(temporary, target, force=force)
        finally:
            os.close(fd)
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(error, target, len(data)) from error


def _fill(fd: int, data: NDArray[np.uint8]) -> None:
    """Store the pages that are not all zeros, and flush them to the disk."""
    os.fchmod(fd, FILE_MODE)
    os.ftruncate(fd, len(data))
    for start, stop in _runs(data):
        while start < stop:
            start += os.pwrite(fd, data[start:stop].data, start)
    os.fsync(fd)


def _runs(data: NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """[start, stop) of stretches with something in them, in whole pages of pieces of bounded size."""
    size = PAGE_BYTES * PIECE_PAGES
    for first in range(0, len(data), size):
        piece = data[first : first + size]
        whole = len(piece) // PAGE_BYTES * PAGE_BYTES
        used = piece[:whole].reshape(-1, PAGE_BYTES).view(np.uint64).any(axis=1)
        edges = np.flatnonzero(np.diff(used, prepend=False, append=False)) * PAGE_BYTES + first
        yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        if whole < len(piece):
            yield first + whole, first + len(piece)


def _reveal(temporary: Path, target: Path, *, force: bool) -> None:
    """Give the file its name, which nobody else may have taken meanwhile, and flush the directory."""
    if force:
        _check_target(target, force=True)
        os.replace(temporary, target)
    else:
        _link(temporary, target)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that cannot flush a directory
            raise
    finally:
        os.close(directory)


def _link(temporary: Path, target: Path) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        _check_target(target, force=False)
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _check_target(target, force=False)
        os.rename(temporary, target)


def _unwritable(error: OSError, target: Path, needed: int) -> LedgerUnwritable:
    if error.errno in _FULL:
        free = "unknown"
        with contextlib.suppress(OSError):
            room = os.statvfs(target.parent)
            free = f"{room.f_bavail * room.f_frsize:,}"
        return NoSpace(f"{target}: the recording needs up to {needed:,} bytes, {free} are free: save it elsewhere")
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return BadTarget(f"{target}: there is no directory {target.parent}: make it, or save elsewhere")
    return LedgerUnwritable(f"{target}: {os.strerror(error.errno or 0)}: save the recording elsewhere")
