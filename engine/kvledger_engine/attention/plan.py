"""AttentionPlan: which queries of a step see which slots, in a few padded tiles. Made once a step, for all layers.

Rows of a batch differ in queries and context. A row's queries are cut into segments, segments of like size share a
tile, and a tile is padded to its largest: sizes in a tile differ by less than a factor of two, so padding at most
doubles either side. Padding repeats the segment's own last query and slot, and is masked: no tile reads a foreign slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvledger.views import I64
from kvledger_engine.batch import Batch, GroupTables, ragged_positions

MAX_QUERIES = 256
MAX_ELEMENTS = 1 << 24
# Contexts up to so many tokens share a tile: padding them costs less than one more call.
_SHORT_CONTEXT_BITS = 6


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How many query and KV heads share a layer, and how wide they are."""

    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """r segments of at most q queries and c slots of context.

    `queries` int64[r × q] are tokens of the batch, `slots` int64[r × c] slots of the store. `mask` bool
    [r, 1, group × q, c] is True where a query sees a slot; `group` query heads share a KV head.
    """

    segments: int
    queries: Tensor
    slots: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The tiles of a step; `order` int64[t] is each token's place in the queries of all tiles, one after the other."""

    tiles: tuple[Tile, ...]
    order: Tensor


@dataclass(frozen=True, slots=True)
class _Segments:
    """Runs of queries of one row each. `first` is a token of the batch, `start` its position; all I64[s].

    The first query sees nothing before position `seen_from` but the first `sinks` positions, which lie before it.
    """

    row: I64
    first: I64
    start: I64
    count: I64
    seen_from: I64
    sinks: I64

    @property
    def ends(self) -> I64:
        return self.start + self.count

    @property
    def contexts(self) -> I64:
        """Positions that any of a segment's queries sees."""
        return self.start + self.count - self.seen_from + self.sinks

    def where(self, chosen: I64) -> _Segments:
        columns = (self.row, self.first, self.start, self.count, self.seen_from, self.sinks)
        return _Segments(*(column[chosen] for column in columns))


def plan_attention(
    batch: Batch,
    layout: HeadLayout,
    device: torch.device,
    *,
    group: int = 0,
    rows: I64 | None = None,
    max_elements: int = MAX_ELEMENTS,
) -> AttentionPlan:
    """The plan of a batch in one cache group, on `device`. `rows` I64[n] are those it is for; None = all.

    Tokens are numbered as they stand in the batch; `order` is that of the rows' tokens. A tile has at most
    `max_elements` scores (heads × queries × context) and gathers at most so many elements of keys and as many of
    values, unless a single segment needs more: then it is one segment, with one query if its scores are too many.
    """
    tables = batch.tables[group]
    tiles, order, base = [], np.zeros(len(batch.tokens), np.int64), 0
    segments = _segments(batch, tables, layout, max_elements)
    if rows is not None:
        segments = segments.where(np.flatnonzero(np.isin(segments.row, rows)))
    for part in _alike(segments, layout, max_elements):
        tile = _tile(tables, part, layout.heads // layout.kv_heads, batch.block_size_tokens, device)
        tiles.append(tile)
        padded = base + np.arange(tile.segments) * (len(tile.queries) // tile.segments)
        order[ragged_positions(part.first, part.count)] = ragged_positions(padded, part.count)
        base += len(tile.queries)
    if rows is not None:
        order = order[np.isin(np.repeat(np.arange(len(batch.counts)), batch.counts), rows)]
    return AttentionPlan(tuple(tiles), torch.from_numpy(order).to(device))


def _segments(batch: Batch, tables: GroupTables, layout: HeadLayout, max_elements: int) -> _Segments:
    """Every row cut into segments short enough for the bound; a long prompt's early ones see a short context."""
    window_tokens, sink_tokens = tables.window_tokens, tables.sink_tokens
    starts, counts = batch.starts.astype(np.int64), batch.counts.astype(np.int64)
    widest = (
        starts + counts if not window_tokens else np.minimum(starts + counts, sink_tokens + window_tokens + MAX_QUERIES)
    )
    longest = np.clip(max_elements // (layout.heads * widest), 1, MAX_QUERIES)
    pieces = -(-counts // longest)
    row = np.repeat(np.arange(len(counts)), pieces)
    skipped = ragged_positions(np.zeros_like(pieces), pieces) * longest[row]
    first, start = (np.cumsum(counts) - counts)[row] + skipped, starts[row] + skipped
    seen_from = np.maximum(start + 1 - window_tokens, 0) if window_tokens else np.zeros_like(start)
    sinks = np.minimum(seen_from, sink_tokens)
    return _Segments(row, first, start, np.minimum(longest[row], counts[row] - skipped), seen_from, sinks)


def _alike(segments: _Segments, layout: HeadLayout, max_elements: int) -> Iterator[_Segments]:
    """Segments by size class, powers of two of both sides, and as many at a time as the bound allows."""
    sizes = _bits(segments.count) * 64 + np.maximum(_bits(segments.contexts), _SHORT_CONTEXT_BITS)
    order = np.argsort(sizes, kind="stable")
    for chosen in np.split(order, np.flatnonzero(np.diff(sizes[order])) + 1):
        queries, context = int(segments.count[chosen].max()), int(segments.contexts[chosen].max())
        elements = context * max(layout.heads * queries, layout.kv_heads * layout.head_dim)
        at_once = max(1, max_elements // elements)
        for begin in range(0, len(chosen), at_once):
            yield segments.where(chosen[begin : begin + at_once])


def _bits(sizes: I64) -> I64:
    """The power of two that is not below each size."""
    bits: I64 = np.ceil(np.log2(sizes)).astype(np.int64)
    return bits


def _tile(tables: GroupTables, part: _Segments, group: int, size: int, device: torch.device) -> Tile:
    """The tile of some segments; whatever is padded repeats the last of its segment."""
    queries = np.minimum(np.arange(part.count.max()), part.count[:, None] - 1)
    number = np.arange(part.contexts.max())
    context = number + np.where(number < part.sinks[:, None], 0, (part.seen_from - part.sinks)[:, None])
    seen = np.minimum(context, part.ends[:, None] - 1)
    gaps = np.where(seen < tables.sink_tokens, 0, tables.skipped[part.row][:, None])
    blocks = tables.blocks[tables.offsets[part.row][:, None] - gaps + seen // size].astype(np.int64)
    asking = (part.start[:, None] + queries)[:, :, None]
    mask = context[:, None, :] <= asking
    if tables.window_tokens:
        mask &= (context[:, None, :] > asking - tables.window_tokens) | (context[:, None, :] < tables.sink_tokens)
    return Tile(
        segments=len(part.row),
        queries=_tensor((part.first[:, None] + queries).reshape(-1), device),
        slots=_tensor((blocks * size + seen % size).reshape(-1), device),
        mask=_tensor(np.tile(mask, (1, group, 1))[:, None], device),
    )


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device)
