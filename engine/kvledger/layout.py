"""The byte layout as data: sections, offsets and the self-description. Computes; never does I/O.

A file is: header page, self-description (JSON), then sections, each on a 64-byte boundary. docs/ledger-format.md is
the prose of this module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvledger.limits import Limits
from kvledger.stats import StatsPlan, plan_stats

MAGIC = b"KVLEDGER"
MAJOR, MINOR = 1, 0
BYTE_ORDER_MARK = 0x01020304
HEADER_BYTES = 4096
ALIGN_BYTES = 64
MAX_DESCRIPTION_BYTES = 1 << 24

HEADER = np.dtype(
    {
        "names": [
            "magic", "major", "minor", "byte_order", "file_bytes", "description_offset", "description_bytes",
            "epoch", "boot_id", "pid", "pid_start_ticks", "created_wall_ns", "clock", "crc32",
        ],
        "formats": ["S8", "<u2", "<u2", "<u4", "<u8", "<u4", "<u4", "<u8", "V16", "<u8", "<u8", "<i8", "<u4", "<u4"],
        "offsets": [0, 8, 10, 12, 16, 24, 28, 32, 40, 56, 64, 72, 80, 84],
        "itemsize": 88,
    }
)  # fmt: skip
CRC_OFFSET = 84  # crc32 covers header bytes [0, 84) followed by the self-description

CONTROL_WORDS: tuple[tuple[str, str], ...] = (
    ("published_seq", "number of the last complete publication"),
    ("writing_seq", "number of the publication in progress, or published_seq"),
    ("stats_index", "publications of the stats group; its parity is the buffer to read"),
    ("closed", "1 after a clean stop"),
    ("abandoned", "1 once a newer epoch of this (engine, rank) exists"),
    ("idle_since_ns", "ledger clock at which the engine ran out of work, 0 while it works"),
    ("free_count", "entries of free.list in use"),
    ("evict_head", "ring position of the oldest entry of evict.ring that may still be valid"),
    ("evict_tail", "ring position of the next entry of evict.ring"),
    ("cached_count", "valid entries of evict.ring"),
    ("index_used", "index slots holding a block"),
    ("index_tombstones", "index slots whose block was removed"),
    ("free_chunk_count", "entries of arena.free_chunks in use"),
    ("free_slot_count", "entries of slot.free_slots in use"),
    ("next_serial", "serial the next request will get"),
    ("events_reserved", "events whose storing has begun"),
    ("events_head", "events stored"),
    ("summaries_reserved", "summaries whose storing has begun"),
    ("summaries_head", "summaries stored"),
    ("overflows", "records that found no room in a section, ever"),
    ("free_pin_count", "entries of pin.free_pins in use"),
    ("instrument_failed", "1 once a mirroring instrument has switched itself off"),
    ("tenant_count", "tenant columns in use, without the last"),
)  # fmt: skip
CONTROL_SIZE = 64
CONTROL_INDEX = {name: index for index, (name, _) in enumerate(CONTROL_WORDS)}

EVENT = np.dtype(
    [("serial", "<u8"), ("seq", "<u8"), ("time_ns", "<i8"), ("blocks", "<i4"), ("event", "u1"), ("detail", "u1"), ("pad", "<u2")]
)
SUMMARY = np.dtype(
    [
        ("serial", "<u8"), ("parent_serial", "<u8"), ("seq", "<u8"), ("id_hash", "<u8"),
        ("arrived_ns", "<i8"), ("first_block_ns", "<i8"), ("first_token_ns", "<i8"), ("finished_ns", "<i8"), ("released_ns", "<i8"),
        ("block_seconds", "<f8"), ("wait_seconds", "<f8", (10,)),
        ("prompt_tokens", "<i4"), ("output_tokens", "<i4"), ("hit_tokens", "<i4"), ("peak_blocks", "<i4"),
        ("released_blocks", "<i4"), ("preemptions", "<i4"),
        ("tenant", "<i2"), ("finish_reason", "u1"), ("cancel_cause", "u1"), ("request_class", "u1"), ("pad", "V3"),
        ("id_head", "S40"), ("id_tail", "S16"),
    ]
)  # fmt: skip
PEAK = np.dtype([("second", "<i8"), ("active_blocks", "<i4"), ("used_blocks", "<i4")])
"""One second of the ledger clock (`second` = now_ns // 1e9) and the most blocks active, and active + cached, in it."""


@dataclass(frozen=True, slots=True)
class Section:
    """One array of the file: where it lies, what it is, its unit and one sentence of help."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    unit: str
    help: str
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything needed to find a value in a file of these limits."""

    limits: Limits
    stats: StatsPlan
    sections: dict[str, Section]
    description: bytes
    file_bytes: int


def _block_sections(n: int) -> Iterator[tuple[str, str, tuple[int, ...], str, str]]:
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


def _structure_sections(limits: Limits) -> Iterator[tuple[str, str, tuple[int, ...], str, str]]:
    n, chunks = limits.capacity_blocks, limits.arena_chunks
    yield "free.list", "<i4", (n,), "block", "free blocks: a stack of free_count entries, next to be taken last"
    yield "index.key", "<u8", (limits.index_slots,), "", "salted 64-bit key of an indexed prefix"
    yield "index.block", "<i4", (limits.index_slots,), "block", "block of the key; -1 never used, -2 removed"
    yield "evict.ring", "<i4", (limits.eviction_slots,), "block", "cached blocks, oldest first; entry p is valid if evict_ticket = p"
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


def _slot_sections(limits: Limits) -> Iterator[tuple[str, str, tuple[int, ...], str, str]]:
    r, g = limits.max_requests, len(limits.groups)
    yield "slot.serial", "<u8", (r,), "", "identity of the request; 0 = slot empty"
    yield "slot.parent_serial", "<u8", (r,), "", "serial of the request it was forked from; 0 = none"
    yield "slot.changed_seq", "<u8", (r,), "", "publication that last changed serial, state or table of the slot"
    yield "slot.state", "u1", (r,), "", "request state"
    yield "slot.request_class", "u1", (r,), "", "request class"
    yield "slot.queue", "u1", (r,), "", "wait queue; 255 = arrived, not yet looked at"
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


def _specs(limits: Limits, stats: StatsPlan) -> Iterator[tuple[str, str | np.dtype[Any], tuple[int, ...], str, str]]:
    yield "control", "<i8", (CONTROL_SIZE,), "", "single words, each stored whole; names under `control`"
    yield "stats", "<f8", (2, stats.size), "", "counters, buckets and gauges: two buffers, stats_index says which is complete"
    yield from _block_sections(limits.capacity_blocks)
    yield from _structure_sections(limits)
    yield from _slot_sections(limits)
    yield "ring.events", EVENT, (limits.event_records,), "", "lifecycle events; record i lies at i mod size"
    yield "ring.summaries", SUMMARY, (limits.summary_records,), "", "ended requests; record i lies at i mod size"
    yield "ring.peaks", PEAK, (limits.peak_records,), "", "per-second peaks; second s lies at s mod size"


def _dtype_json(dtype: np.dtype[Any]) -> str | list[dict[str, Any]]:
    if dtype.fields is None:
        return dtype.str
    return [
        {
            "name": name,
            "type": dtype[name].base.str,
            "shape": list(dtype[name].shape),
            "offset": int(dtype.fields[name][1]),
        }
        for name in dtype.names or ()
    ]


def _describe(limits: Limits, stats: StatsPlan, sections: list[Section]) -> bytes:
    return json.dumps(
        {
            "limits": asdict(limits),
            "control": [{"name": name, "help": text, "index": i} for i, (name, text) in enumerate(CONTROL_WORDS)],
            "sections": [
                {
                    "name": s.name,
                    "type": _dtype_json(s.dtype),
                    "item_bytes": s.dtype.itemsize,
                    "shape": list(s.shape),
                    "offset": s.offset,
                    "unit": s.unit,
                    "help": s.help,
                }
                for s in sections
            ],
            "stats": stats.describe(),
        },
        separators=(",", ":"),
    ).encode()


def _align(offset: int) -> int:
    return -(-offset // ALIGN_BYTES) * ALIGN_BYTES


def _place(sections: list[Section], start: int) -> tuple[list[Section], int]:
    placed, offset = [], start
    for section in sections:
        offset = _align(offset)
        placed.append(Section(section.name, section.dtype, section.shape, section.unit, section.help, offset))
        offset += section.nbytes
    return placed, _align(offset)


def plan_layout(limits: Limits) -> Layout:
    """Place every section for `limits`. The description's own length moves the sections, so it is padded to a fixed room."""
    stats = plan_stats(limits.tenant_columns)
    bare = [Section(name, np.dtype(t), shape, unit, text) for name, t, shape, unit, text in _specs(limits, stats)]
    room = len(_describe(limits, stats, bare)) + 24 * len(bare)
    placed, end = _place(bare, _align(HEADER_BYTES + room))
    description = _describe(limits, stats, placed)
    if len(description) > room:
        raise AssertionError(f"self-description of {len(description)} bytes outgrew its room of {room}")
    return Layout(limits, stats, {s.name: s for s in placed}, description, end)
