"""Residents: keys and values of the rows that decode, laid out one after the other and kept from step to step.

A row that decodes sees what it saw a step ago and one position more: only that is fetched from the pages. Owns a copy,
never the truth, and trusts it only where a row decoded in the step before, goes on at the next position, and has the
blocks it had. What lies beyond a row's context is zero: nothing of a former resident is ever multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvledger.views import I32, I64
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.attention.scaling import LARGEST, restore
from kvledger_engine.batch import Batch, GroupTables, ragged_positions

_SEEN_STEP = 16  # contexts are padded to a multiple of it, so that what is multiplied does not change every step


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """A step of one class of residents, on the CPU.

    `queries` int64[n] are tokens of the batch by place, `places` int64[r] where each of `rows` int64[r], tokens too,
    lies among them. Slots `sources` int64[f] of the store go to `targets` int64[kv_heads × f] of the kept cells, after
    the places `cleared` int64[e] became zeros. `mask` [n × kv_heads, 1, seen] is -inf where a row sees nothing.
    """

    queries: Tensor
    places: Tensor
    rows: Tensor
    sources: Tensor
    targets: Tensor
    cleared: Tensor
    mask: Tensor
    in_order: bool
    """Whether the rows are one after the other at the first places, and no place is without one."""


class Residents:
    """Rows of contexts up to `capacity_tokens` in one cache group without a window. `layers` share their places."""

    def __init__(self, layout: HeadLayout, *, capacity_tokens: int, block_size_tokens: int) -> None:
        self._layout, self._capacity, self._size = layout, capacity_tokens, block_size_tokens
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._place_of = np.zeros(0, np.int64)
        self._settle(0)

    def _settle(self, places: int) -> None:
        """Begin anew, with room for so many rows."""
        self._kept.clear()
        self._place_of[:] = -1
        self._slot_at = np.full(places, -1, np.int64)
        self._contexts = np.zeros(places, np.int64)
        self._tables = np.full((places, -(-self._capacity // self._size)), -1, np.int32)

    def forget(self) -> None:
        """Trust nothing that was kept."""
        self._contexts[:] = -1

    def move(self, batch: Batch, tables: GroupTables, rows: I64, tokens: I64) -> Moves:
        """What a step of `rows` changes; `tokens` I64[r] are theirs in the batch. They are residents from then on."""
        slots, starts = batch.slots[rows].astype(np.int64), batch.starts[rows].astype(np.int64)
        places, kept = self._seat(slots)
        blocks = self._blocks(tables, rows, starts)
        kept &= (self._contexts[places] == starts) & self._unchanged(places, blocks, starts, _filled(batch))
        self._contexts[places], self._tables[places, : blocks.shape[1]] = starts + 1, blocks
        first = np.where(kept, starts, 0)
        positions = ragged_positions(first, starts + 1 - first)
        row = np.repeat(np.arange(len(rows)), starts + 1 - first)
        sources = blocks[row, positions // self._size].astype(np.int64) * self._size + positions % self._size
        heads = np.arange(self._layout.kv_heads)[:, None]
        targets = (places[row] * self._layout.kv_heads + heads) * self._capacity + positions
        queries = np.zeros(len(self._slot_at), np.int64)
        queries[places] = tokens
        return Moves(
            queries=torch.from_numpy(queries),
            places=torch.from_numpy(places),
            rows=torch.from_numpy(tokens),
            sources=torch.from_numpy(sources),
            targets=torch.from_numpy(targets.reshape(-1)),
            cleared=torch.from_numpy(places[~kept]),
            mask=self._mask(places, starts),
            in_order=len(places) == len(queries) and bool((places == np.arange(len(places))).all()),
        )

    def _seat(self, slots: I64) -> tuple[I64, NDArray[np.bool_]]:
        """The place of each row, and whether it had it before. Who is not among them has none any more."""
        highest = int(slots.max()) + 1
        if highest > len(self._place_of):
            self._place_of = np.concatenate((self._place_of, np.full(highest - len(self._place_of), -1)))
        if not len(slots) <= len(self._slot_at) <= 2 * len(slots):
            self._settle(len(slots))
        places = self._place_of[slots]
        kept = places >= 0
        if not kept.all() or np.count_nonzero(self._slot_at >= 0) > len(slots):
            self._leave(slots)
            free = np.flatnonzero(self._slot_at < 0)
            places[~kept] = free[: np.count_nonzero(~kept)]
            self._place_of[slots], self._slot_at[places] = places, slots
        return places, kept

    def _leave(self, staying: I64) -> None:
        gone = np.flatnonzero((self._slot_at >= 0) & ~np.isin(self._slot_at, staying))
        self._place_of[self._slot_at[gone]] = -1
        self._slot_at[gone] = -1

    def _blocks(self, tables: GroupTables, rows: I64, starts: I64) -> I32:
        """Each row's blocks up to its own position, [r, blocks]; what is padded repeats the last."""
        last = starts // self._size
        wanted = np.minimum(np.arange(int(last.max()) + 1), last[:, None])
        blocks: I32 = tables.blocks[tables.offsets[rows][:, None] + wanted]
        return blocks

    def _unchanged(self, places: I64, blocks: I32, starts: I64, copied: I32) -> NDArray[np.bool_]:
        """Whether the blocks of the positions that were kept are the same ones, and no copy went into them."""
        numbers = np.arange(blocks.shape[1])
        same = self._tables[places, : blocks.shape[1]] == blocks
        if len(copied):
            same &= ~np.isin(blocks, copied)
        unchanged: NDArray[np.bool_] = (same | (numbers * self._size >= starts[:, None])).all(axis=1)
        return unchanged

    def _mask(self, places: I64, starts: I64) -> Tensor:
        """A place without a row sees its first position, so that its softmax is a number; nobody reads it."""
        ends = np.zeros(len(self._slot_at), np.int64)
        ends[places] = starts
        seen = min(-(-(int(starts.max()) + 1) // _SEEN_STEP) * _SEEN_STEP, self._capacity)
        hidden = torch.from_numpy(np.repeat(np.arange(seen) > ends[:, None], self._layout.kv_heads, axis=0))
        return torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None]

    def attend(self, query: Tensor, cells: LayerCells, moves: Moves) -> Tensor:
        """What the rows see in a layer, [r, heads, head_dim], in the order of `moves.rows`. Fetches what is new."""
        wide, layout, seen = torch.promote_types(query.dtype, torch.float32), self._layout, moves.mask.shape[2]
        keys, values = self._fetched(cells, moves, wide)
        asked = query if moves.in_order and len(query) == len(moves.queries) else query.index_select(0, moves.queries)
        folded = asked.to(wide).reshape(-1, layout.heads // layout.kv_heads, layout.head_dim)
        mask = moves.mask.to(wide)
        scores = torch.baddbmm(mask, folded, keys[:, :seen].transpose(1, 2), alpha=layout.head_dim**-0.5)
        found = torch.bmm(torch.softmax(scores, -1), values[:, :seen]).view(-1, layout.heads, layout.head_dim)
        return (found if moves.in_order else found.index_select(0, moves.places)).to(query.dtype)

    def _fetched(self, cells: LayerCells, moves: Moves, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The kept keys and values of a layer, [places × kv_heads, capacity, head_dim] each, with all that is new."""
        layout = self._layout
        if cells.layer not in self._kept:
            shape = (len(self._slot_at) * layout.kv_heads, self._capacity, layout.head_dim)
            self._kept[cells.layer] = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        kept = self._kept[cells.layer]
        pages = ((cells.keys, cells.key_scales), (cells.values, cells.value_scales))
        for whole, (stored, scales) in zip(kept, pages, strict=True):
            if len(moves.cleared):
                whole.unflatten(0, (-1, layout.kv_heads)).index_fill_(0, moves.cleared, 0.0)
            fresh = _read(stored, scales, moves.sources, dtype)
            whole.view(-1, layout.head_dim).index_copy_(0, moves.targets, fresh.flatten(0, 1))
        return kept


def _filled(batch: Batch) -> I32:
    """Blocks that get their content from elsewhere in this step: by a copy, or from the host."""
    if batch.host_copies is None:
        return batch.copy_target
    return np.concatenate((batch.copy_target, batch.host_copies.in_targets))


def _read(stored: Tensor, scales: Tensor | None, slots: Tensor, dtype: torch.dtype) -> Tensor:
    bits = stored.view(torch.int8) if stored.dtype in LARGEST else stored
    read = bits.flatten(1, 2).index_select(1, slots).view(stored.dtype)
    return read.to(dtype) if scales is None else restore(read, scales.flatten(1).index_select(1, slots), dtype)
