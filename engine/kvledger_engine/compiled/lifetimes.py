"""Reference lifetimes: how long requests held the blocks that they give back, counted into two histograms."""

from __future__ import annotations

from typing import Any

from kvledger.clock import NS_PER_SECOND
from kvledger.views import F64, I64
from kvledger_engine.compiled.arrays import LIFETIME_ALONE, LIFETIME_SHARED, Arrays, unpack
from kvledger_engine.compiled.kernel import helper, kernel


@helper
def observe(stats: F64, index: int, bounds: F64, value: float, near: int) -> int:
    """Count a value in the histogram at `index`; returns its bucket, a good guess for the next one's."""
    bucket = near
    while bucket > 0 and value <= bounds[bucket - 1]:
        bucket -= 1
    while bucket < len(bounds) and value > bounds[bucket]:
        bucket += 1
    stats[index + bucket] += 1
    stats[index + len(bounds) + 1] += value
    return bucket


@helper
def count(arrays: Arrays, slot: int, block: int, near: int) -> int:
    """The request in `slot` is about to give a block back; returns a guess for the next one."""
    since_ns = max(arrays.allocated_ns[block], arrays.attached_ns[slot])
    shared = arrays.ref_count[block] >= 2 or arrays.owner[block] != arrays.serial[slot]
    index = arrays.settings[LIFETIME_SHARED if shared else LIFETIME_ALONE]
    seconds = (arrays.now_ns[0] - since_ns) / NS_PER_SECOND
    return observe(arrays.stats, index, arrays.lifetime_bounds, seconds, near)


@kernel("void(i8[::1], i8[::1], i8[::1])")
def lifetimes(handle: Any, slots: I64, blocks: I64) -> None:
    """Each of `slots` I64[n] is about to give blocks[i] back."""
    arrays, near = unpack(handle), 0
    for row in range(len(blocks)):
        near = count(arrays, slots[row], blocks[row], near)
