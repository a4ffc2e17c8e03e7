"""Block tables out of the chunk arena, as one flat array with offsets. Bounded whatever the chains say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.snapshot import SlotTable
from kvledger.views import I32, I64

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tables:
    """Block tables in CSR form: table t holds `blocks[offsets[t] : offsets[t + 1]]`.

    Table t = row * groups + group of the slot rows it was read for. Entries that name no block are -1. `damage` says
    in words what was out of bounds.
    """

    offsets: I64
    blocks: I32
    groups: int
    damage: tuple[str, ...]


def read_tables(sections: Sections, slots: SlotTable) -> Tables:
    """The block tables of `slots` as read just before.

    A table that was given back or begun while this looked is left out: all its blocks were stamped. One that has only
    grown is read up to its earlier length, whose entries and chunks stood before `slots` was read. So for a block that
    nothing has stamped since, exactly the entries that name it are found.
    """
    chunks, width = sections.head.sections["arena.chunk"].shape
    lengths, damaged = _bounded_lengths(slots.table_blocks.ravel().astype(np.int64), chunks * width)
    chain, per_table, broken = _walk(sections.read("arena.next"), slots.first_chunk.ravel(), -(-lengths // width))
    lengths = np.minimum(lengths, per_table * width)
    blocks = _gather(sections, chain, per_table, lengths)
    same = np.repeat(_unbroken(sections, slots), slots.table_blocks.shape[1])
    if not same.all():
        blocks = blocks[np.repeat(same, lengths)]
        lengths[~same] = 0
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    capacity = sections.head.sections["block.state"].shape[0]
    outside = (blocks < 0) | (blocks >= capacity)
    blocks[outside] = -1
    notes = {
        "block tables have impossible lengths": int((damaged & same).sum()),
        "block tables have broken chains": int((broken & same).sum()),
        "block-table entries name no block": int(outside.sum()),
    }
    damage = tuple(f"{count} {text}" for text, count in notes.items() if count)
    return Tables(offsets, blocks, slots.table_blocks.shape[1], damage)


def _unbroken(sections: Sections, slots: SlotTable) -> Mask:
    """Rows whose tables have lived on since `slots` was read: same request, not preempted since, not shorter."""
    rows = int(slots.slot[-1]) + 1 if len(slots) else 0

    def now(name: str) -> NDArray[Any]:
        return sections.read(f"slot.{name}", rows)[slots.slot]

    lived: Mask = (now("serial") == slots.serial) & (now("preemptions") == slots.preemptions)
    lived &= (now("first_chunk") == slots.first_chunk).all(axis=1)
    lived &= (now("table_blocks") >= slots.table_blocks).all(axis=1)
    return lived


def _bounded_lengths(lengths: I64, room: int) -> tuple[I64, Mask]:
    bad = (lengths < 0) | (lengths > room)
    lengths[bad] = 0
    bad |= np.cumsum(lengths) > room
    lengths[bad] = 0
    return lengths, bad


def _walk(next_chunk: I32, first: I32, wanted: I64) -> tuple[I64, I64, Mask]:
    """(chunks of all tables one after the other, how many each table has, which chains broke off).

    All chains advance one chunk at a time. `wanted` adds up to at most the arena plus one chunk per table, so a cycle
    costs no more than a full arena.
    """
    starts = np.zeros(len(wanted) + 1, np.int64)
    np.cumsum(wanted, out=starts[1:])
    chain = np.full(int(starts[-1]), -1, np.int64)
    found, broken = wanted.copy(), np.zeros(len(wanted), np.bool_)
    tables = np.flatnonzero(wanted > 0)
    at, level = first[tables].astype(np.int64), 0
    while len(tables):
        inside = (at >= 0) & (at < len(next_chunk))
        if not inside.all():
            found[tables[~inside]], broken[tables[~inside]] = level, True
            tables, at = tables[inside], at[inside]
        chain[starts[tables] + level] = at
        level += 1
        more = wanted[tables] > level
        tables, at = tables[more], next_chunk[at[more]].astype(np.int64)
    return chain[chain >= 0], found, broken


def _gather(sections: Sections, chain: I64, per_table: I64, lengths: I64) -> I32:
    """The entries behind a chain of chunks, without the unused end of each table's last chunk."""
    if not len(chain):
        return np.empty(0, np.int32)
    rows = sections.read("arena.chunk", int(chain.max()) + 1)[chain]
    width = rows.shape[1]
    held = per_table > 0
    used = np.ones(rows.shape, np.bool_)
    used[np.cumsum(per_table)[held] - 1] = np.arange(width) < (lengths - (per_table - 1) * width)[held, None]
    blocks: I32 = rows[used]
    return blocks
