"""Families of a pool and of its cache groups."""

from __future__ import annotations

from kvledger.families.build import group_gauge, pool_gauge
from kvledger.families.family import Family, Label, Source
from kvledger.words import BlockState, PinKind

_STATE = Label("state", BlockState.words())
_PIN = Label("kind", tuple(k.word for k in PinKind if k is not PinKind.NONE))

POOL_GAUGES: tuple[Family, ...] = (
    pool_gauge("pool_blocks", "Blocks by state; the three add up to the capacity.", "blocks", _STATE),
    pool_gauge("pool_capacity_blocks", "Blocks the pool can hand out, the null block not counted.", "blocks"),
    pool_gauge(
        "pool_pinned_blocks", "Blocks referenced by a declared holder that is not a live table.", "blocks", _PIN
    ),
    pool_gauge(
        "pool_leaked_blocks",
        "Active blocks whose references exceed live tables and pins beyond the grace.",
        "blocks",
        source=Source.AGENT,
    ),
    pool_gauge("pool_committed_blocks", "Blocks admitted requests may still need up to max_tokens.", "blocks"),
    pool_gauge("pool_peak_active_blocks", "Most active blocks at any instant of the last 60 seconds.", "blocks"),
    pool_gauge("pool_longest_free_run_blocks", "Longest run of adjacent free block ids.", "blocks"),
    pool_gauge("pool_budget_bytes", "Memory that the KV cache was planned in: its blocks, and the reserve.", "bytes"),
    pool_gauge("pool_reserve_bytes", "Memory kept for weights, activations, buffers and allocator metadata.", "bytes"),
    pool_gauge("pool_alert_watermark_ratio", "Share of active blocks at which an operator is told.", "ratio"),
    pool_gauge(
        "pool_admission_watermark_blocks", "Free blocks the engine keeps back when it admits requests.", "blocks"
    ),
    pool_gauge(
        "pool_seconds_to_exhaustion",
        "Headroom divided by the last minute's net growth; absent when not growing.",
        "seconds",
        source=Source.AGENT,
    ),
)

GROUP_GAUGES: tuple[Family, ...] = (
    group_gauge("group_logical_blocks", "Sum of block-table lengths over live requests.", "blocks"),
    group_gauge("group_active_blocks", "Blocks of this group with a reference count of at least one.", "blocks"),
    group_gauge("group_shared_blocks", "Blocks in two or more live tables.", "blocks"),
    group_gauge("group_tail_waste_slots", "Allocated slots of live tables that hold no token.", "slots"),
    group_gauge("group_block_size_tokens", "Token slots per block.", "tokens"),
    group_gauge("group_block_bytes", "Bytes of one block over all layers of the group.", "bytes"),
    group_gauge("group_bytes_per_token", "Bytes one token takes over all layers of the group.", "bytes_per_token"),
)
