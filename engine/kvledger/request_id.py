"""A client's request id as a ledger keeps it: its two ends, to be read, and a hash of the whole, to be told apart."""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

HEAD_BYTES, TAIL_BYTES = 40, 16


class KeptId(NamedTuple):
    """What the columns `id_hash`, `id_head` and `id_tail` hold; the ends overlap in an id of less than 56 bytes."""

    hash: int
    head: bytes
    tail: bytes


def kept_id(request_id: str) -> KeptId:
    """The same in every process. `hash` is 64-bit blake2b, little-endian; the ends are of the id's UTF-8."""
    raw = request_id.encode()
    digest = blake2b(raw, digest_size=8).digest()
    return KeptId(int.from_bytes(digest, "little"), raw[:HEAD_BYTES], raw[-TAIL_BYTES:])
