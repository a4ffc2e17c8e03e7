"""Salted 64-bit keys of prefixes. Owns the arithmetic, no state.

The key of a prefix mixes (a) the sum modulo 2^64 of a mix of each (token, position, seed), so that a sequence that
grows adds only its new tokens, (b) the request's salt and (c) the number of blocks. The seed, random per ledger, keeps
anybody who reads a ledger from testing guessed prompts against its keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.views import I32
from kvledger_engine.compiled.kernel import helper

# Odd, so that no bit is lost: the golden ratio and constants of other splitmix variants.
_TOKEN, _POSITION = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_BLOCK, _SALT = np.uint64(0xA24BAED4963EE407), np.uint64(0x9FB21C651E98DF25)
_GROUP = np.uint64(0xE7037ED1A0B428DB)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


@helper
def mix(value: Any) -> Any:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014)."""
    value = (value ^ (value >> _30)) * _FIRST
    value = (value ^ (value >> _27)) * _SECOND
    return value ^ (value >> _31)


@helper
def block_sum(tokens: I32, first: int, size: int, position: int, seed: Any) -> Any:
    """Sum of the mixed (token, position) pairs of tokens[first : first + size], the first of them at `position`."""
    total = np.uint64(0)
    for number in range(size):
        pair = np.uint64(tokens[first + number]) * _TOKEN + np.uint64(position + number) * _POSITION
        total += mix(pair ^ seed)
    return total


@helper
def shortened(key: Any, bits: int) -> Any:
    """A key of so many bits: fewer than 64 force collisions. Never 0."""
    if bits < 64:
        key &= (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    return np.uint64(1) if key == np.uint64(0) else key


@helper
def prefix_key(total: Any, salt: Any, number: int, bits: int) -> Any:
    """The key of the prefix that ends in block `number` and whose blocks sum to `total`."""
    return shortened(mix(np.uint64(number) * _BLOCK + salt * _SALT + total), bits)


@helper
def group_key(key: Any, group: int, bits: int) -> Any:
    """The key of the same prefix in cache group `group` ≥ 1."""
    return shortened(mix(key ^ (np.uint64(group) * _GROUP)), bits)
