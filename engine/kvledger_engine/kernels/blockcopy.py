"""Block copy: whole blocks of every layer and KV head to other blocks, bit for bit, whatever their format."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_PIECE = 1024
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def copy_blocks(cells: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy blocks int64[c] of `cells` [layers, kv_heads, blocks, …], contiguous, to others.

    No block may be both a source and a target.
    """
    if not len(sources):
        return
    # As integers: a copy of a number that is none, in a format the card cannot compute in, is a copy too.
    bits = cells.view(_BITS[cells.element_size()]).flatten(0, 1).flatten(2)
    pieces = triton.cdiv(bits.shape[2], _PIECE)
    _copy_piece[(len(sources), bits.shape[0], pieces)](
        bits, sources, targets, *bits.stride()[:2], SIZE=bits.shape[2], PIECE=_PIECE
    )


@triton.jit
def _copy_piece(
    cells: Any,
    sources: Any,
    targets: Any,
    plane_stride: Any,
    block_stride: Any,
    SIZE: tl.constexpr,
    PIECE: tl.constexpr,
) -> None:
    """A piece of one block in one layer and KV head."""
    pair, plane = tl.program_id(0), tl.program_id(1).to(tl.int64)
    at = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    begin = cells + plane * plane_stride + at
    source, target = tl.load(sources + pair), tl.load(targets + pair)
    content = tl.load(begin + source * block_stride, mask=at < SIZE)
    tl.store(begin + target * block_stride, content, mask=at < SIZE)
