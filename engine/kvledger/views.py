"""Typed numpy views of a ledger's sections, for the writer over its mapping and for a reader over its copies.

A view class names its sections by its own field names: `Blocks.ref_count` is section `block.ref_count`. Shapes, dtypes
and meanings are in `kvledger.layout`, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]
I16 = NDArray[np.int16]
Bytes = NDArray[np.bytes_]


@dataclass(slots=True)
class Blocks:
    """Per-block arrays, shape (capacity,)."""

    ref_count: I32
    state: U8
    group: U8
    tenant: I16
    owner: U64
    prefix_hash: U64
    filled_tokens: I32
    allocated_ns: I64
    changed_seq: U64
    share_clock: F64
    share_since_ns: I64
    index_slot: I32
    evict_ticket: I64


@dataclass(slots=True)
class Free:
    """The free list: a stack of which `control.free_count` entries are in use."""

    list: I32


@dataclass(slots=True)
class Index:
    """The prefix index: open addressing, in buckets."""

    key: U64
    block: I32


@dataclass(slots=True)
class Evict:
    """The eviction order: a ring of blocks, an entry being valid while the block's ticket names it."""

    ring: I32


@dataclass(slots=True)
class Arena:
    """Block-table chunks, shape (chunks, chunk_blocks), their links and their free stack."""

    chunk: I32
    next: I32
    free_chunks: I32


@dataclass(slots=True)
class Pins:
    """References held by something that is not a live table."""

    block: I32
    kind: U8
    holder: U64
    since_ns: I64
    lease_ns: I64
    free_pins: I32


@dataclass(slots=True)
class Tenants:
    """Tenant columns; the last is `other`."""

    name: Bytes
    quota_blocks: I64


@dataclass(slots=True)
class SlotColumns:
    """What is known of a request, shape (rows,), (rows, groups) or (rows, causes)."""

    serial: U64
    parent_serial: U64
    changed_seq: U64
    state: U8
    request_class: U8
    queue: U8
    finish_reason: U8
    cancel_cause: U8
    tenant: I16
    prompt_tokens: I32
    max_tokens: I32
    computed_tokens: I32
    output_tokens: I32
    hit_tokens: I32
    own_from_token: I32
    peak_blocks: I32
    preemptions: I32
    arrived_ns: I64
    queued_ns: I64
    first_block_ns: I64
    first_token_ns: I64
    last_token_ns: I64
    finishing_ns: I64
    block_seconds: F64
    share_base: F64
    wait_base: F64
    wait_seconds: F64
    id_hash: U64
    id_head: Bytes
    id_tail: Bytes
    table_blocks: I32
    first_chunk: I32
    last_chunk: I32


@dataclass(slots=True)
class Slots(SlotColumns):
    """Request slots, one row each, and their free stack."""

    free_slots: I32


@dataclass(slots=True)
class Rings:
    """Lifecycle events, ended requests and per-second peaks, as structured arrays."""

    events: NDArray[Any]
    summaries: NDArray[Any]
    peaks: NDArray[Any]


@dataclass(slots=True)
class Instrument:
    """Why a mirroring instrument switched itself off, shape (1,)."""

    failure: Bytes


@dataclass(slots=True)
class Prefixes:
    """Accounts of shared prefixes, as a structured array; the last row is all others."""

    accounts: NDArray[Any]


PREFIXES: dict[type[Any], str] = {
    Blocks: "block", Free: "free", Index: "index", Evict: "evict", Arena: "arena",
    Pins: "pin", Tenants: "tenant", SlotColumns: "slot", Slots: "slot", Rings: "ring",
    Instrument: "instrument", Prefixes: "prefix",
}  # fmt: skip

View = TypeVar("View")


def section_names(kind: type[Any]) -> tuple[str, ...]:
    """The sections behind a view class, in field order."""
    return tuple(f"{PREFIXES[kind]}.{f.name}" for f in fields(kind))


def build(kind: type[View], section: Callable[[str], NDArray[Any]]) -> View:
    """A view of class `kind`, each field taken from `section(name)`."""
    return kind(*(section(name) for name in section_names(kind)))
