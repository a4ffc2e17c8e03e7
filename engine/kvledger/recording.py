"""What makes a file a recording: its magic, and the block of its header page that says when and how it was recorded.

All else in a recording is laid out as in a ledger. `kvledger.record` makes one; `kvledger.reader` reads it.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvledger import liveness
from kvledger.errors import NotALedger
from kvledger.layout import HEADER_BYTES
from kvledger.source import Source

RECORDING_MAGIC = b"KVRECORD"
BLOCK_OFFSET, BLOCK_BYTES = 128, 128
PIECE_BYTES = 1 << 20
_UNKNOWN = -1

BLOCK = np.dtype(
    {
        "names": [
            "status", "wall_ns", "monotonic_ns", "now_ns", "heartbeat_age_ns",
            "blocks_in_motion", "requests_in_motion", "body_crc32", "crc32",
        ],
        "formats": ["S16", "<i8", "<i8", "<i8", "<i8", "<u8", "<u8", "<u4", "<u4"],
        "offsets": [0, 16, 24, 32, 40, 48, 56, 64, 124],
        "itemsize": BLOCK_BYTES,
    }
)  # fmt: skip
_CRC_OFFSET = 124  # crc32 covers the bytes of the block before it


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The instant of a recording.

    `status` is the word the ledger's status had then (`kvledger.status.ReadStatus`), `wall_ns` and `monotonic_ns` the
    recording machine's clocks, `now_ns` the ledger clock, which ages run to; `heartbeat_age_seconds` is None where it
    was unknown. Blocks in motion were changed while they were copied: their stamps are above `published_seq` and no
    audit judges them. Requests in motion are those whose row or table was, or that came or ended; no sample shows them.
    """

    status: str
    wall_ns: int
    monotonic_ns: int
    now_ns: int
    heartbeat_age_seconds: float | None
    blocks_in_motion: int
    requests_in_motion: int
    body_crc32: int


def block_bytes(recording: Recording) -> bytes:
    """The recording's block, checksum included."""
    block = np.zeros((), BLOCK)
    age = recording.heartbeat_age_seconds
    for name in ("wall_ns", "monotonic_ns", "now_ns", "blocks_in_motion", "requests_in_motion", "body_crc32"):
        block[name] = getattr(recording, name)
    block["status"] = recording.status.encode()
    block["heartbeat_age_ns"] = _UNKNOWN if age is None else round(age * 1e9)
    block["crc32"] = zlib.crc32(block.tobytes()[:_CRC_OFFSET])
    return block.tobytes()


def read_block(source: Source) -> Recording:
    """The block of a file that has the magic. Raises `NotALedger` for a wrong checksum, or `Truncated`."""
    raw = source.read(BLOCK_OFFSET, BLOCK_BYTES)
    block = np.frombuffer(raw, BLOCK)[0]
    if zlib.crc32(raw[:_CRC_OFFSET]) != int(block["crc32"]):
        raise NotALedger("the checksum over the recording's time and status does not match: the file is damaged")
    age_ns = int(block["heartbeat_age_ns"])
    return Recording(
        status=bytes(block["status"]).decode(errors="replace"),
        wall_ns=int(block["wall_ns"]),
        monotonic_ns=int(block["monotonic_ns"]),
        now_ns=int(block["now_ns"]),
        heartbeat_age_seconds=None if age_ns == _UNKNOWN else age_ns / 1e9,
        blocks_in_motion=int(block["blocks_in_motion"]),
        requests_in_motion=int(block["requests_in_motion"]),
        body_crc32=int(block["body_crc32"]),
    )


def check_body(source: Source, file_bytes: int, recording: Recording) -> None:
    """Compare everything behind the header page with its checksum. Raises `NotALedger` or `Truncated`.

    A ledger cannot have such a checksum, since it never stands still; a recording can, and it may travel far.
    """
    crc = 0
    for offset in range(HEADER_BYTES, file_bytes, PIECE_BYTES):
        crc = zlib.crc32(source.read(offset, min(PIECE_BYTES, file_bytes - offset)), crc)
    if crc != recording.body_crc32:
        raise NotALedger("the checksum over the recording does not match: the file is damaged")


def is_recording(path: Path) -> bool:
    """Whether a regular file begins as a recording does, whatever its name. False for what cannot be read."""
    try:
        status = os.lstat(path)
        if liveness.is_own((status.st_dev, status.st_ino)):  # opening it here would drop this process's lock
            return False
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return os.pread(fd, len(RECORDING_MAGIC), 0) == RECORDING_MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)
