"""The salt of a prefix: what must be equal besides tokens and positions for two requests to share blocks."""

from __future__ import annotations

import hashlib


def prefix_salt(salt: str, *, scope: str = "", adapter: str = "", kv_format: str = "") -> int:
    """The 64-bit salt of everything besides tokens and positions that must be equal for two prefixes to be shared.

    `scope` says among whom they are; `salt` is the request's own.
    """
    parts = (scope, salt, adapter, kv_format)
    data = b"".join(len(part.encode()).to_bytes(4, "little") + part.encode() for part in parts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
