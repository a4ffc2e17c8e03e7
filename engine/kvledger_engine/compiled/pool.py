"""The block pool's moves: blocks are taken, shared and released, one after the other. Stamps first, then changes.

Owns references, states, owners, share clocks and the free list. A share clock is the integral of 1 / ref_count since
the block was allocated, in seconds: what a request has had of a block is the difference of two readings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.layout import CONTROL_INDEX
from kvledger.views import F64, I16, I64, U8, U64
from kvledger.words import BlockState
from kvledger_engine.compiled import evict, index, lives
from kvledger_engine.compiled.arrays import (
    ACTIVE_GAUGE,
    CACHED_GAUGE,
    EVICTIONS,
    FREE_GAUGE,
    POLICY,
    TENANT_BLOCKS,
    Arrays,
    unpack,
)
from kvledger_engine.compiled.kernel import helper, kernel
from kvledger_engine.compiled.order import settle

_FREE_COUNT, _CACHED_COUNT = CONTROL_INDEX["free_count"], CONTROL_INDEX["cached_count"]
_OVERFLOWS = CONTROL_INDEX["overflows"]
_FREE, _CACHED, _ACTIVE = int(BlockState.FREE), int(BlockState.CACHED), int(BlockState.ACTIVE)


@helper
def available(arrays: Arrays) -> int:
    """Blocks that can be taken now."""
    return arrays.control[_FREE_COUNT] + arrays.control[_CACHED_COUNT]


@helper
def count_gauges(arrays: Arrays, activated: int) -> None:
    """Bring the three gauges up to date after so many more blocks have become active."""
    arrays.stats[arrays.settings[ACTIVE_GAUGE]] += activated
    arrays.stats[arrays.settings[FREE_GAUGE]] = arrays.control[_FREE_COUNT]
    arrays.stats[arrays.settings[CACHED_GAUGE]] = arrays.control[_CACHED_COUNT]


@helper
def charge(arrays: Arrays, column: int, blocks: int) -> None:
    """Charge so many blocks, fewer if negative, to a tenant column whose block-seconds are up to date."""
    arrays.stats[arrays.settings[TENANT_BLOCKS] + column] += blocks
    arrays.charged[column] = 1


@helper
def seize(arrays: Arrays, taken: I64) -> None:
    """Take as many blocks out of free list and eviction order as `taken` has room for, stamped; there must be so many.

    Free ones first, then cached ones in their order, whose content is lost.
    """
    control, free_list, changed_seq, seq = arrays.control, arrays.free_list, arrays.changed_seq, arrays.seq[0]
    top = control[_FREE_COUNT]
    free = min(top, len(taken))
    for number in range(free):
        block = free_list[top - 1 - number]
        taken[number] = block
        changed_seq[block] = seq
    settle()
    control[_FREE_COUNT] = top - free
    if free < len(taken):
        evict.draw(arrays, taken, free)
        index.remove(arrays, taken, free)
        arrays.stats[arrays.settings[EVICTIONS]] += len(taken) - free


@helper
def hold(arrays: Arrays, taken: I64, owners: U64, tenants: I16, groups: U8) -> None:
    """Stamped blocks that are in no list any more get their first reference; owners and so on are one, or one each."""
    now_ns, policy = arrays.now_ns[0], arrays.settings[POLICY]
    ref_count, state, filled_tokens, block_lives = arrays.ref_count, arrays.state, arrays.filled_tokens, arrays.lives
    owner, tenant, group, allocated_ns = arrays.owner, arrays.tenant, arrays.group, arrays.allocated_ns
    share_clock, share_since_ns = arrays.share_clock, arrays.share_since_ns
    many_owners, many_groups = len(owners) > 1, len(groups) > 1
    activated, charged, column = 0, 0, tenants[0] if len(tenants) else 0
    for number in range(len(taken)):
        block = taken[number]
        row = number if many_owners else 0
        owner[block] = owners[row]
        tenant[block] = tenants[row]
        group[block] = groups[number if many_groups else 0]
        filled_tokens[block] = 0
        allocated_ns[block] = now_ns
        share_clock[block] = 0.0
        share_since_ns[block] = now_ns
        if policy != lives.LRU:
            block_lives[block] = 0
        # Only after a fault has a block references here: too many are lost, and too few stay so, as taking heals none.
        references = min(ref_count[block], 0) + 1
        activates = ref_count[block] < 1 and references >= 1
        ref_count[block] = references
        state[block] = _ACTIVE
        if activates:
            if tenants[row] != column:
                if charged:
                    charge(arrays, column, charged)
                column, charged = tenants[row], 0
            charged += 1
            activated += 1
    if charged:
        charge(arrays, column, charged)
    count_gauges(arrays, activated)


@kernel("void(i8[::1], u8[::1], i2[::1], u1[::1], i8[::1])")
def take(handle: Any, owners: U64, tenants: I16, groups: U8, taken: I64) -> None:
    """Fill `taken` I64[n] with blocks, each with one reference. There must be so many.

    `owners` U64, `tenants` I16 and `groups` U8 have one element for all or one per block, the first two alike.
    """
    arrays = unpack(handle)
    seize(arrays, taken)
    hold(arrays, taken, owners, tenants, groups)


@kernel("void(i8[::1], u8[::1], i2[::1], i8[::1])")
def take_these(handle: Any, owners: U64, tenants: I16, taken: I64) -> None:
    """As `take`, of given, stamped blocks, which are in no list any more."""
    groups = np.zeros(1, np.uint8)
    hold(unpack(handle), taken, owners, tenants, groups)


@helper
def advance_clock(share_clock: F64, share_since_ns: I64, now_ns: int, references: int, block: int) -> float:
    """Bring a block's share clock up to now, before its references change; returns it."""
    seconds = share_clock[block]
    if references > 0:
        seconds += (now_ns - share_since_ns[block]) / NS_PER_SECOND / references
        share_clock[block] = seconds
    share_since_ns[block] = now_ns
    return seconds


@kernel("void(i8[::1], i8[::1], f8[::1])")
def read_clocks(handle: Any, blocks: I64, seconds: F64) -> None:
    """Seconds on the share clock of each of `blocks` I64[n] now, to `seconds` F64[n]."""
    arrays = unpack(handle)
    for row in range(len(blocks)):
        block = blocks[row]
        references = arrays.ref_count[block]
        seconds[row] = arrays.share_clock[block]
        if references > 0:
            seconds[row] += (arrays.now_ns[0] - arrays.share_since_ns[block]) / NS_PER_SECOND / references


@kernel("UniTuple(f8, 2)(i8[::1], i8[::1], i8)")
def share(handle: Any, blocks: I64, column: int) -> tuple[float, float]:
    """One more reference to each of `blocks` I64[n]; cached ones come back to life, charged to `column`.

    With column -1 they are charged to whom they were charged to. Returns the seconds on their share clocks, and how
    many of them were free.
    """
    arrays = unpack(handle)
    changed_seq, seq, policy = arrays.changed_seq, arrays.seq[0], arrays.settings[POLICY]
    ref_count, state, tenant, block_lives = arrays.ref_count, arrays.state, arrays.tenant, arrays.lives
    share_clock, share_since_ns, now_ns = arrays.share_clock, arrays.share_since_ns, arrays.now_ns[0]
    for block in blocks:
        changed_seq[block] = seq
    settle()
    seconds, free, activated = 0.0, 0, 0
    for block in blocks:
        free += state[block] == _FREE
        old = ref_count[block]
        seconds += advance_clock(share_clock, share_since_ns, now_ns, old, block)
        ref_count[block] = old + 1
        activated += old < 1 and old + 1 >= 1
        lives.used(policy, block_lives, block)
        if arrays.evict_ticket[block] >= 0:
            evict.remove(arrays.control, arrays.evict_ticket, block)
            state[block] = _ACTIVE
            if column >= 0:
                tenant[block] = column
            charge(arrays, tenant[block], 1)
    count_gauges(arrays, activated)
    return seconds, np.float64(free)


@kernel("UniTuple(f8, 2)(i8[::1], i8[::1])")
def release(handle: Any, blocks: I64) -> tuple[float, float]:
    """Give one reference to each of `blocks` I64[n] back. Those left without are cached, in the order given, or free.

    Returns the seconds on their share clocks, and how many of them nobody held.
    """
    arrays = unpack(handle)
    changed_seq, seq = arrays.changed_seq, arrays.seq[0]
    for block in blocks:
        changed_seq[block] = seq
    settle()
    return drop(arrays, blocks)


@helper
def drop(arrays: Arrays, blocks: I64) -> tuple[float, float]:
    """As `release`, of blocks that are stamped already."""
    control, ring, evict_ticket, changed_seq = arrays.control, arrays.ring, arrays.evict_ticket, arrays.changed_seq
    ref_count, state, index_slot, tenant = arrays.ref_count, arrays.state, arrays.index_slot, arrays.tenant
    seq, policy, free_list = arrays.seq[0], arrays.settings[POLICY], arrays.free_list
    share_clock, share_since_ns, now_ns = arrays.share_clock, arrays.share_since_ns, arrays.now_ns[0]
    seconds, unheld, ended, charged, column = 0.0, 0, 0, 0, 0
    for block in blocks:
        old = ref_count[block]
        seconds += advance_clock(share_clock, share_since_ns, now_ns, old, block)
        ref_count[block] = old - 1
        unheld += old < 1
        if old > 1:
            continue
        # Cached while held is only what a fault has brought about: it goes to the free list, too.
        if index_slot[block] >= 0 and evict_ticket[block] < 0:
            state[block] = _CACHED
            lives.cached(policy, arrays.lives, arrays.whole_lives, block)
            evict.append(control, ring, evict_ticket, changed_seq, seq, arrays.scratch, block)
        else:
            state[block] = _FREE
            push_free(control, free_list, block)
        if old == 1:
            ended += 1
            if tenant[block] != column:
                if charged:
                    charge(arrays, column, -charged)
                column, charged = tenant[block], 0
            charged += 1
    if charged:
        charge(arrays, column, -charged)
    count_gauges(arrays, -ended)
    return seconds, np.float64(unheld)


@helper
def push_free(control: I64, free_list: Any, block: int) -> None:
    """Put a block on the free list; counted as an overflow where it is full, which only a fault can bring about."""
    top = control[_FREE_COUNT]
    if top == len(free_list):
        control[_OVERFLOWS] += 1
        return
    free_list[top] = block
    control[_FREE_COUNT] = top + 1
