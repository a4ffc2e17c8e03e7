"""Paged decode attention: one query a row, its keys and values read in place through the row's block table.

Two kernels. The first cuts every row's context into splits, so that a few long contexts fill a card, and keeps the
running maximum and sum of each (Milakov and Gimelshein, 2018); the second joins the splits (Flash-Decoding, Dao et
al., 2023). Query heads that share a KV head are rows of one product. Positions before a window are never read.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.rows import DecodeRows

TILE_TOKENS = 64
MAX_SPLITS = 64
_LEAST_SIDE = 16
"""Of a product on tensor cores."""
_PROGRAMS_PER_MULTIPROCESSOR = 4


def splits_of(programs: int, longest_tokens: int, multiprocessors: int) -> int:
    """Splits that fill a card of so many multiprocessors, a power of two; `programs` is rows × KV heads.

    A split is a tile at least, and at most `MAX_SPLITS` are joined.
    """
    wanted = -(-_PROGRAMS_PER_MULTIPROCESSOR * multiprocessors // max(1, programs))
    tiles = -(-longest_tokens // TILE_TOKENS)
    splits = 1 << (max(1, min(wanted, tiles)) - 1).bit_length()
    return min(splits, MAX_SPLITS)


def paged_decode(
    query: Tensor, cells: LayerCells, rows: DecodeRows, *, splits: int, tile_tokens: int = TILE_TOKENS
) -> Tensor:
    """What each row's query sees: [rows, heads, head_dim], like `query`, from one layer's cells in any format.

    Scores are scaled by 1/√head_dim. float32 throughout but for the factors of the two products, which have the
    query's dtype.
    """
    count, heads, head_dim = query.shape
    kv_heads, _, block_size, _ = cells.keys.shape
    query, group = query.contiguous(), heads // kv_heads
    parts = query.new_empty((count, heads, splits, head_dim), dtype=torch.float32)
    tops, sums = (query.new_empty((count, heads, splits), dtype=torch.float32) for _ in range(2))
    out = torch.empty_like(query)
    # A kernel has no None: without scales it gets pointers that it never follows.
    key_scales, value_scales = (
        (cells.key_scales, cells.value_scales)
        if cells.key_scales is not None and cells.value_scales is not None
        else (tops, sums)
    )
    dims = max(_LEAST_SIDE, triton.next_power_of_2(head_dim))
    sizes: dict[str, Any] = {"HEAD_DIM": head_dim, "DIMS": dims, "SPLITS": splits}
    _attend_split[(count, kv_heads, splits)](
        query,
        cells.keys,
        cells.values,
        key_scales,
        value_scales,
        rows.blocks,
        rows.bases,
        rows.contexts,
        parts,
        tops,
        sums,
        head_dim**-0.5,
        *cells.keys.stride()[:3],
        *key_scales.stride()[:2],
        GROUP=group,
        LANES=max(_LEAST_SIDE, triton.next_power_of_2(group)),
        BLOCK_SIZE=block_size,
        TILE=tile_tokens,
        WINDOW=rows.window_tokens,
        QUANTISED=cells.key_scales is not None,
        # The interpreter, which alone takes a CPU's tensors, multiplies the bits of bfloat16 as if they were integers.
        WIDENED=not query.is_cuda,
        **sizes,
    )
    _join_splits[(count * heads,)](parts, tops, sums, out, **sizes)
    return out


@triton.jit
def _attend_split(
    query: Any,
    keys: Any,
    values: Any,
    key_scales: Any,
    value_scales: Any,
    blocks: Any,
    bases: Any,
    contexts: Any,
    parts: Any,
    tops: Any,
    sums: Any,
    scale: Any,
    head_stride: Any,
    block_stride: Any,
    token_stride: Any,
    scale_head_stride: Any,
    scale_block_stride: Any,
    GROUP: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    QUANTISED: tl.constexpr,
    WIDENED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """One split of one row's context, for all query heads of one KV head."""
    row, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    context = tl.load(contexts + row)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - WINDOW, 0)
    # Whole tiles a split, so that only the last one of a row masks anything.
    length = tl.cdiv(tl.cdiv(context - first, SPLITS), TILE) * TILE
    begin = first + split * length
    end = tl.minimum(begin + length, context)

    lanes, dims, within = tl.arange(0, LANES), tl.arange(0, DIMS), tl.arange(0, TILE)
    head = (row * tl.num_programs(1) + kv_head).to(tl.int64) * GROUP + lanes
    real = (lanes < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    asked = tl.load(query + head[:, None] * HEAD_DIM + dims[None, :], mask=real, other=0.0)
    table = blocks + tl.load(bases + row)
    top = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    seen = tl.zeros([LANES, DIMS], tl.float32)

    for start in range(begin, end, TILE):
        position = start + within
        inside = position < end
        block = tl.load(table + position // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
        token = position % BLOCK_SIZE
        cell = kv_head * head_stride + block * block_stride + token * token_stride
        scale_at = kv_head * scale_head_stride + block * scale_block_stride + token
        there = inside[:, None] & (dims < HEAD_DIM)[None, :]

        key = _like(asked, tl.load(keys + cell[:, None] + dims[None, :], mask=there, other=0.0), WIDENED)
        scores = _product(asked, tl.trans(key), WIDENED) * scale
        if QUANTISED:
            scores *= tl.load(key_scales + scale_at, mask=inside, other=0.0)[None, :]
        scores = tl.where(inside[None, :], scores, float("-inf"))

        higher = tl.maximum(top, tl.max(scores, axis=1))
        faded = tl.exp(top - higher)
        weights = tl.exp(scores - higher[:, None])
        total = total * faded + tl.sum(weights, axis=1)
        if QUANTISED:
            weights *= tl.load(value_scales + scale_at, mask=inside, other=0.0)[None, :]
        value = _like(asked, tl.load(values + cell[:, None] + dims[None, :], mask=there, other=0.0), WIDENED)
        seen = seen * faded[:, None] + _product(weights.to(asked.dtype), value, WIDENED)
        top = higher

    # A split that begins behind the context has a maximum of -inf, which the join passes over.
    part = head * SPLITS + split
    tl.store(parts + part[:, None] * HEAD_DIM + dims[None, :], seen, mask=real)
    tl.store(tops + part, top, mask=lanes < GROUP)
    tl.store(sums + part, total, mask=lanes < GROUP)


@triton.jit
def _like(asked: Any, cells: Any, WIDENED: tl.constexpr) -> Any:
    """Cells in the query's dtype. Whole numbers as bfloat16 are wrong in the interpreter, but for a step between."""
    if WIDENED:
        cells = cells.to(tl.float32)
    return cells.to(asked.dtype)


@triton.jit
def _product(left: Any, right: Any, WIDENED: tl.constexpr) -> Any:
    """A product summed in float32. Factors widened beforehand give the same: products of theirs are exact there."""
    if WIDENED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, input_precision="ieee")


@triton.jit
def _join_splits(
    parts: Any, tops: Any, sums: Any, out: Any, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, SPLITS: tl.constexpr
) -> None:
    """One query head of one row: its splits weighed by what they saw."""
    head = tl.program_id(0).to(tl.int64)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, DIMS)
    top = tl.load(tops + head * SPLITS + splits)
    weights = tl.exp(top - tl.max(top, axis=0))
    total = tl.sum(weights * tl.load(sums + head * SPLITS + splits), axis=0)
    part = (head * SPLITS + splits)[:, None] * HEAD_DIM + dims[None, :]
    seen = tl.load(parts + part, mask=(dims < HEAD_DIM)[None, :], other=0.0)
    joined = tl.sum(seen * weights[:, None], axis=0) / total
    tl.store(out + head * HEAD_DIM + dims, joined.to(out.dtype.element_ty), mask=dims < HEAD_DIM)
