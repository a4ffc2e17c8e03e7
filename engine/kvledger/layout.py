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
from kvledger.sections import block_sections, slot_sections, structure_sections
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
    ("mirror_corrections", "what a mirroring instrument found changed by no way it watches, and corrected"),
)  # fmt: skip
CONTROL_SIZE = 64
CONTROL_INDEX = {name: index for index, (name, _) in enumerate(CONTROL_WORDS)}

EVENT = np.dtype(
    [
        ("serial", "<u8"),
        ("seq", "<u8"),
        ("time_ns", "<i8"),
        ("blocks", "<i4"),
        ("event", "u1"),
        ("detail", "u1"),
        ("pad", "<u2"),
    ]
)
SUMMARY = np.dtype(
    [
        ("serial", "<u8"), ("parent_serial", "<u8"), ("seq", "<u8"), ("id_hash", "<u8"),
        ("arrived_ns", "<i8"), ("first_block_ns", "<i8"), ("first_token_ns", "<i8"),
        ("finished_ns", "<i8"), ("released_ns", "<i8"),
        ("block_seconds", "<f8"), ("wait_seconds", "<f8", (10,)),
        ("prompt_tokens", "<i4"), ("output_tokens", "<i4"), ("hit_tokens", "<i4"), ("peak_blocks", "<i4"),
        ("released_blocks", "<i4"), ("preemptions", "<i4"),
        ("tenant", "<i2"), ("finish_reason", "u1"), ("cancel_cause", "u1"), ("request_class", "u1"), ("pad", "V3"),
        ("id_head", "S40"), ("id_tail", "S16"),
    ]
)  # fmt: skip
SUMMARY_FIELDS = SUMMARY.names or ()
PEAK = np.dtype([("second", "<i8"), ("active_blocks", "<i4"), ("used_blocks", "<i4")])
"""One second of the ledger clock (`second` = now_ns // 1e9) and the most blocks active, and active + cached, in it."""

PREFIX_ACCOUNT = np.dtype(
    [
        ("key", "<u8"),
        ("admissions", "<i8"),
        ("hits", "<i8"),
        ("queried_tokens", "<i8"),
        ("hit_tokens", "<i8"),
        ("lookup_seconds", "<f8"),
        ("reference_seconds", "<f8"),
        ("index_seconds", "<f8"),
        ("copy_seconds", "<f8"),
        ("copied_blocks", "<i8"),
        ("forks", "<i8"),
        ("forked_tokens", "<i8"),
    ]
)
"""What sharing one prefix cost and saved since this start; `key` is that of its first block, 0 = none."""
PREFIX_ACCOUNTS = 64
"""Prefixes with an account of their own; one more row is for all others."""


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


def _specs(limits: Limits, stats_values: int) -> Iterator[tuple[str, str | np.dtype[Any], tuple[int, ...], str, str]]:
    yield "control", "<i8", (CONTROL_SIZE,), "", "single words, each stored whole; names under `control`"
    yield (
        "stats",
        "<f8",
        (2, stats_values),
        "",
        "counters, buckets and gauges: two buffers, stats_index says which is complete",
    )
    yield from block_sections(limits.capacity_blocks)
    yield from structure_sections(limits)
    yield from slot_sections(limits)
    rows = PREFIX_ACCOUNTS + 1
    yield (
        "prefix.accounts",
        PREFIX_ACCOUNT,
        (rows,),
        "",
        "cost and use of sharing by prefix; the last row is all others",
    )
    yield "ring.events", EVENT, (limits.event_records,), "", "lifecycle events; record i lies at i mod size"
    yield "ring.summaries", SUMMARY, (limits.summary_records,), "", "ended requests; record i lies at i mod size"
    yield "ring.peaks", PEAK, (limits.peak_records,), "", "per-second peaks; second s lies at s mod size"
    yield (
        "instrument.failure",
        "S240",
        (1,),
        "",
        "why a mirroring instrument switched itself off, once instrument_failed",
    )


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
            # What is not reported is not described: that is all a reader has to know.
            "limits": {name: value for name, value in asdict(limits).items() if name != "unreported"},
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
            "stats": stats.describe(limits.unreported),
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


def bare_sections(limits: Limits, stats_values: int) -> list[Section]:
    """The sections of a ledger of these limits, not placed yet; `stats_values` is the length of the stats vector."""
    return [
        Section(name, np.dtype(t), shape, unit, text) for name, t, shape, unit, text in _specs(limits, stats_values)
    ]


def plan_layout(limits: Limits) -> Layout:
    """Place every section. The description names offsets that its own length moves, so it gets a fixed room."""
    stats = plan_stats(limits.tenant_columns)
    bare = bare_sections(limits, stats.size)
    room = len(_describe(limits, stats, bare)) + 24 * len(bare)
    placed, end = _place(bare, _align(HEADER_BYTES + room))
    description = _describe(limits, stats, placed)
    if len(description) > room:
        raise AssertionError(f"self-description of {len(description)} bytes outgrew its room of {room}")
    return Layout(limits, stats, {s.name: s for s in placed}, description, end)
