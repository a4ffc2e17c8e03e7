"""The table of a ledger's arrays: name, type, shape, unit and one sentence of help. Data; places nothing.

The order is the order in the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.limits import Limits

Spec = tuple[str, str, tuple[int, ...], str, str]
"""(name, NumPy type, shape, unit, help)"""


def block_sections(n: int) -> Iterator[Spec]:
    """Per-block arrays of a pool of `n` blocks."""
    yield "block.ref_count", "<i4", (n,), "references", "live tables and pins that hold the block"
    yield "block.state", "u1", (n,), "", "0 free, 1 cached, 2 active"
    yield "block.group", "u1", (n,), "", "cache group the block was last allocated to"
    yield "block.tenant", "<i2", (n,), "", "tenant column the block is charged to"
    yield "block.owner", "<u8", (n,), "", "serial of the request that allocated it; 0 = never allocated"
    yield "block.prefix_hash", "<u8", (n,), "", "salted key of the prefix that ends in this block; 0 = none"
    yield "block.filled_tokens", "<i4", (n,), "tokens", "tokens whose keys and values are in the block"
    yield "block.allocated_ns", "<i8", (n,), "nanoseconds", "ledger clock at the last allocation"
    yield "block.changed_seq", "<u8", (n,), "", "publication that last changed the block or a table entry naming it"
    yield "block.share_clock", "<f8", (n,), "seconds", "integral of 1/ref_count since allocation, up to share_since_ns"
    yield "block.share_since_ns", "<i8", (n,), "nanoseconds", "ledger clock at the last change of ref_count"
    yield "block.index_slot", "<i4", (n,), "", "slot of the prefix index naming the block; -1 = not indexed"
    yield "block.evict_ticket", "<i8", (n,), "", "position in the eviction ring; -1 = not evictable"


def structure_sections(limits: Limits) -> Iterator[Spec]:
    """Free list, prefix index, eviction order, block tables, pins, tenants."""
    n, chunks = limits.capacity_blocks, limits.arena_chunks
    yield "free.list", "<i4", (n,), "block", "free blocks: a stack of free_count entries, next to be taken last"
    yield "index.key", "<u8", (limits.index_slots,), "", "salted 64-bit key of an indexed prefix"
    yield "index.block", "<i4", (limits.index_slots,), "block", "block of the key; -1 = slot empty"
    yield (
        "evict.ring",
        "<i4",
        (limits.eviction_slots,),
        "block",
        "cached blocks, oldest first; entry p is valid if evict_ticket = p",
    )
    yield "arena.chunk", "<i4", (chunks, limits.chunk_blocks), "block", "block-table chunks"
    yield "arena.next", "<i4", (chunks,), "chunk", "next chunk of the same table; -1 = last"
    yield "arena.free_chunks", "<i4", (chunks,), "chunk", "free chunks: a stack of free_chunk_count entries"
    p = limits.pin_records
    yield "pin.block", "<i4", (p,), "block", "pinned block; -1 = entry free"
    yield "pin.kind", "u1", (p,), "", "kind of pin"
    yield "pin.holder", "<u8", (p,), "", "serial or id of the holder"
    yield "pin.since_ns", "<i8", (p,), "nanoseconds", "ledger clock when pinned"
    yield "pin.lease_ns", "<i8", (p,), "nanoseconds", "how long the holder may keep it"
    yield "pin.free_pins", "<i4", (p,), "", "free pin entries: a stack of free_pin_count entries"
    t = limits.tenant_columns
    yield "tenant.name", "S64", (t,), "", "tenant name; the last column is `other`"
    yield "tenant.quota_blocks", "<i8", (t,), "blocks", "most blocks it may hold; 0 = no quota"


def slot_sections(limits: Limits) -> Iterator[Spec]:
    """Request slots: one array per field, so that a step touches many requests at once."""
    r, g = limits.max_requests, len(limits.groups)
    yield "slot.serial", "<u8", (r,), "", "identity of the request; 0 = slot empty"
    yield "slot.parent_serial", "<u8", (r,), "", "serial of the request it was forked from; 0 = none"
    yield "slot.changed_seq", "<u8", (r,), "", "publication that last changed serial, state or table of the slot"
    yield "slot.state", "u1", (r,), "", "request state"
    yield "slot.request_class", "u1", (r,), "", "request class"
    yield (
        "slot.queue",
        "u1",
        (r,),
        "",
        "wait queue; 1 + n = waits by itself for cause n; 255 = arrived, not yet looked at",
    )
    yield "slot.finish_reason", "u1", (r,), "", "finish reason, once finishing"
    yield "slot.cancel_cause", "u1", (r,), "", "cancel cause + 1; 0 = not cancelled"
    yield "slot.tenant", "<i2", (r,), "", "tenant column"
    yield "slot.prompt_tokens", "<i4", (r,), "tokens", "length of the prompt"
    yield "slot.max_tokens", "<i4", (r,), "tokens", "most tokens it may generate"
    yield "slot.computed_tokens", "<i4", (r,), "tokens", "tokens whose keys and values are stored"
    yield "slot.output_tokens", "<i4", (r,), "tokens", "tokens generated"
    yield "slot.hit_tokens", "<i4", (r,), "tokens", "prompt tokens taken from the prefix cache"
    yield "slot.own_from_token", "<i4", (r,), "tokens", "first token position the request may write without a copy"
    yield "slot.peak_blocks", "<i4", (r,), "blocks", "most blocks held at once"
    yield "slot.preemptions", "<i4", (r,), "", "times preempted"
    yield "slot.arrived_ns", "<i8", (r,), "nanoseconds", "ledger clock at arrival"
    yield "slot.queued_ns", "<i8", (r,), "nanoseconds", "ledger clock when its present wait began"
    yield "slot.first_block_ns", "<i8", (r,), "nanoseconds", "ledger clock when it first held a block; 0 = never"
    yield "slot.first_token_ns", "<i8", (r,), "nanoseconds", "ledger clock at its first token; 0 = none yet"
    yield "slot.last_token_ns", "<i8", (r,), "nanoseconds", "ledger clock at its last token"
    yield "slot.finishing_ns", "<i8", (r,), "nanoseconds", "ledger clock when it ended; 0 = not ended"
    yield "slot.block_seconds", "<f8", (r,), "seconds", "block-seconds of tables given back"
    yield "slot.share_base", "<f8", (r,), "seconds", "sum of its blocks' share clocks when they were attached"
    yield "slot.wait_base", "<f8", (r, 10), "seconds", "clock of its queue, by cause, when it joined"
    yield "slot.wait_seconds", "<f8", (r, 10), "seconds", "waits already ended, by cause"
    yield "slot.id_hash", "<u8", (r,), "", "64-bit hash of the client's request id"
    yield "slot.id_head", "S40", (r,), "", "first 40 bytes of the client's request id"
    yield "slot.id_tail", "S16", (r,), "", "last 16 bytes of the client's request id"
    yield "slot.table_blocks", "<i4", (r, g), "blocks", "length of the block table, per group"
    yield "slot.first_chunk", "<i4", (r, g), "chunk", "first chunk of the table; -1 = none"
    yield "slot.last_chunk", "<i4", (r, g), "chunk", "last chunk of the table; -1 = none"
    yield "slot.free_slots", "<i4", (r,), "", "free slots: a stack of free_slot_count entries"
