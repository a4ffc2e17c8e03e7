"""Salted 64-bit keys of prefixes, as pure functions of token arrays. Owns the arithmetic, no state.

The key of a prefix mixes (a) the sum modulo 2^64 of a mix of each (token, position, seed), so that a sequence that
grows adds only its new tokens, (b) the request's salt and (c) the number of blocks. The seed, random per ledger, keeps
anybody who reads a ledger from testing guessed prompts against its keys.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = NDArray[np.uint64]
Integers = NDArray[np.signedinteger[Any]]

# Odd, so that no bit is lost: the golden ratio and constants of other splitmix variants.
_TOKEN, _POSITION = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_BLOCK, _SALT = np.uint64(0xA24BAED4963EE407), np.uint64(0x9FB21C651E98DF25)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def prefix_salt(salt: str, *, scope: str = "", adapter: str = "", kv_format: str = "") -> int:
    """The 64-bit salt of everything besides tokens and positions that must be equal for two prefixes to be shared.

    `scope` says among whom they are; `salt` is the request's own.
    """
    parts = (scope, salt, adapter, kv_format)
    data = b"".join(len(part.encode()).to_bytes(4, "little") + part.encode() for part in parts)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def mix(values: U64) -> U64:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014), element by element, in place; returns `values`."""
    values ^= values >> np.uint64(30)
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values


def block_sums(tokens: Integers, positions: Integers, seed: int) -> U64:
    """Sum of the mixed (token, position) pairs of each row: int[rows, block_size] twice -> uint64[rows]."""
    pairs = tokens.astype(np.uint64)
    pairs *= _TOKEN
    pairs += positions.astype(np.uint64) * _POSITION
    pairs ^= np.uint64(seed)
    return np.asarray(mix(pairs).sum(axis=1, dtype=np.uint64))


def prefix_keys(sums: U64, salts: U64, indexes: Integers, bits: int) -> U64:
    """Keys of prefixes ending in block `indexes` whose blocks sum to `sums`; `bits` < 64 forces collisions. Never 0."""
    keys = indexes.astype(np.uint64)
    keys *= _BLOCK
    keys += salts * _SALT
    keys += sums
    mix(keys)
    if bits < 64:
        keys &= np.uint64((1 << bits) - 1)
    keys[keys == 0] = 1
    return keys
