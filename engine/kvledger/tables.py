"""Block tables out of the chunk arena: which chunks each has, and its entries when asked. Bounded whatever they say."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.snapshot import SlotTable
from kvledger.views import I32, I64

Mask = NDArray[np.bool_]


class Tables:
    """The tables of some slot rows: table t = row * groups + group has `lengths[t]` entries.

    `chain` are the chunks of all tables one after the other, `used` how many entries of each are the table's. `arena`
    holds the chunks, borrowed. Entries that name no block are -1. `damage` says in words what was out of bounds.
    """

    def __init__(
        self,
        arena: I32,
        chain: I64,
        per_table: I64,
        lengths: I64,
        *,
        groups: int,
        capacity: int,
        damage: tuple[str, ...],
    ) -> None:
        self.arena, self.chain, self.lengths, self.groups, self.damage = arena, chain, lengths, groups, damage
        self._capacity, self._ends = capacity, np.cumsum(per_table)
        self._first = self._ends - per_table
        width, held = arena.shape[1], per_table > 0
        self.used: I64 = np.full(len(chain), width, np.int64)
        self.used[self._ends[held] - 1] = (lengths - (per_table - 1) * width)[held]

    @cached_property
    def offsets(self) -> I64:
        """Where each table begins in `blocks`, and the end."""
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets

    @cached_property
    def blocks(self) -> I32:
        """All entries: table t holds `blocks[offsets[t] : offsets[t + 1]]`. Ask before the next look at any ledger."""
        rows = self.arena[self.chain]
        return self._bounded(rows[np.arange(rows.shape[1]) < self.used[:, None]])

    def entries(self, table: I64, position: I64) -> I32:
        """The entries at some positions of some tables, which must be below their lengths."""
        width = self.arena.shape[1]
        return self._bounded(self.arena[self.chain[self._first[table] + position // width], position % width])

    def _bounded(self, blocks: I32) -> I32:
        blocks[(blocks < 0) | (blocks >= self._capacity)] = -1
        return blocks


def read_tables(sections: Sections, slots: SlotTable) -> Tables:
    """The block tables of `slots` as read just before.

    A table that was given back, cut or begun while this looked is left out: all its blocks were stamped. One that has
    only grown is read up to its earlier length, whose entries and chunks stood before `slots` was read. So for a block
    that nothing has stamped since, exactly the entries that name it are found.
    """
    chunks, width = sections.head.sections["arena.chunk"].shape
    lengths, damaged = _bounded_lengths(slots.table_blocks.ravel().astype(np.int64), chunks * width)
    chain, per_table, broken = _walk(sections.read("arena.next"), slots.first_chunk.ravel(), -(-lengths // width))
    lengths = np.minimum(lengths, per_table * width)
    arena: I32 = sections.read("arena.chunk", int(chain.max()) + 1 if len(chain) else 0)
    same, still = _unbroken(sections, slots)
    if not same.all():
        chain = chain[np.repeat(same, per_table)]
        lengths[~same] = per_table[~same] = 0
    notes = {
        "block tables have impossible lengths": int((damaged & still).sum()),
        "block tables have broken chains": int((broken & still).sum()),
    }
    damage = tuple(f"{count} {text}" for text, count in notes.items() if count)
    capacity = sections.head.sections["block.state"].shape[0]
    return Tables(
        arena, chain, per_table, lengths, groups=slots.table_blocks.shape[1], capacity=capacity, damage=damage
    )


def _unbroken(sections: Sections, slots: SlotTable) -> tuple[Mask, Mask]:
    """Tables that have lived on since `slots` was read: same request, not preempted since, not shorter.

    Each for itself: of a request's tables one may have lost what left its window, and the others stand. And those of
    which nothing has changed since: a table that was cut and has grown again may have been seen between the two.
    """
    rows = int(slots.slot[-1]) + 1 if len(slots) else 0

    def now(name: str) -> NDArray[Any]:
        return sections.read(f"slot.{name}", rows)[slots.slot]

    lived: Mask = (now("serial") == slots.serial) & (now("preemptions") == slots.preemptions)
    same: Mask = lived[:, None] & (now("first_chunk") == slots.first_chunk)
    same &= now("table_blocks") >= slots.table_blocks
    still: Mask = same & (now("changed_seq") == slots.changed_seq)[:, None]
    return same.ravel(), still.ravel()


def _bounded_lengths(lengths: I64, room: int) -> tuple[I64, Mask]:
    bad = (lengths < 0) | (lengths > room)
    lengths[bad] = 0
    bad |= np.cumsum(lengths) > room
    lengths[bad] = 0
    return lengths, bad


def _walk(next_chunk: I32, first: I32, wanted: I64) -> tuple[I64, I64, Mask]:
    """(chunks of all tables one after the other, how many each table has, which chains broke off).

    All chains advance one chunk at a time, the longest first, so that those still on their way are the first ones.
    `wanted` adds up to at most the arena plus one chunk per table, so a cycle costs no more than a full arena.
    """
    outside = len(next_chunk)
    onward = np.append(_inside(next_chunk, outside), outside)
    longest = np.argsort(-wanted, kind="stable")
    tables = len(wanted) - np.cumsum(np.bincount(wanted))[:-1]  # how many have more than 0, 1, 2, … chunks
    levels = np.zeros(len(tables) + 1, np.int64)
    np.cumsum(tables, out=levels[1:])
    walked = np.empty(int(levels[-1]), np.int64)
    at = _inside(first, outside)[longest]
    for start, count in zip(levels.tolist(), tables.tolist(), strict=False):
        walked[start : start + count] = at[:count]
        at = onward[at[:count]]
    level = np.repeat(np.arange(len(tables)), tables)
    place = (np.cumsum(wanted) - wanted)[longest[np.arange(len(walked)) - levels[level]]] + level
    chain = np.empty_like(walked)
    chain[place] = walked
    found, broken = wanted.copy(), np.zeros(len(wanted), np.bool_)
    if len(lost := np.flatnonzero(chain == outside)):
        table = np.searchsorted(np.cumsum(wanted), lost, side="right")
        np.subtract.at(found, table, 1)
        broken[table] = True
        chain = chain[chain != outside]
    return chain, found, broken


def _inside(chunks: I32, outside: int) -> I64:
    """Chunk numbers, those that are none replaced by one beyond the last."""
    numbers: I64 = chunks.astype(np.int64)
    numbers[(numbers < 0) | (numbers >= outside)] = outside
    return numbers
