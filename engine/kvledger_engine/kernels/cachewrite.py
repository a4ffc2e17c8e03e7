"""Cache write: a step's keys and values into their slots, quantised on the way where the store's format asks for it."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kvledger_engine.attention.layercells import LayerCells


def write_cells(cells: LayerCells, slots: Tensor, key: Tensor, value: Tensor, *, largest: float) -> None:
    """Store [t, kv_heads, head_dim] of keys and values at distinct slots, int64[t].

    `largest` is the largest number of a quantised format: a vector's scale is its largest magnitude divided by it.
    """
    tokens, kv_heads, head_dim = key.shape
    if not tokens:
        return
    for given, stored, scales in ((key, cells.keys, cells.key_scales), (value, cells.values, cells.value_scales)):
        given = given.contiguous()
        _write_vectors[(tokens, kv_heads)](
            given,
            stored,
            given if scales is None else scales,
            slots,
            largest,
            *stored.stride()[:3],
            *(given if scales is None else scales).stride()[:2],
            BLOCK_SIZE=stored.shape[2],
            QUANTISED=scales is not None,
            WHOLE=not stored.dtype.is_floating_point,
            HEAD_DIM=head_dim,
            DIMS=triton.next_power_of_2(head_dim),
        )


@triton.jit
def _round_e4m3(vector: Any) -> Any:
    """float32 numbers rounded to the nearest e4m3 ones, ties to even: a cast has nothing left to round then.

    Casts to eight bits differ between cards, and Triton's interpreter loses a carry in them. Adding and taking away
    1.5 × 2^20 × the number's power of two leaves three bits behind the first; below 2^-6 the step is that of 2^-6.
    """
    power = (vector.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    shift = tl.maximum(power, 0.015625) * 1572864.0
    return (vector + shift) - shift


@triton.jit
def _write_vectors(
    given: Any,
    stored: Any,
    scales: Any,
    slots: Any,
    largest: Any,
    head_stride: Any,
    block_stride: Any,
    token_stride: Any,
    scale_head_stride: Any,
    scale_block_stride: Any,
    BLOCK_SIZE: tl.constexpr,
    QUANTISED: tl.constexpr,
    WHOLE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
) -> None:
    """One vector of one KV head."""
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, DIMS)
    vector = tl.load(given + (row * tl.num_programs(1) + kv_head) * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0)
    slot = tl.load(slots + row)
    block, token = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    if QUANTISED:
        vector = vector.to(tl.float32)
        # tl.max passes over what is no number: a broken vector has to stay broken.
        broken = tl.sum((vector != vector).to(tl.int32), axis=0) > 0
        scale = tl.where(broken, float("nan"), tl.max(tl.abs(vector), axis=0) / largest)
        tl.store(scales + kv_head * scale_head_stride + block * scale_block_stride + token, scale)
        sound = (scale > 0) & (scale < float("inf"))
        vector = tl.where(sound, vector, 0.0) / tl.where(sound, scale, 1.0)
        vector = tl.floor(vector + 0.5) if WHOLE else _round_e4m3(vector)
        vector = tl.minimum(tl.maximum(vector, -largest), largest)
    cell = kv_head * head_stride + block * block_stride + token * token_stride
    tl.store(stored + cell + dims, vector.to(stored.dtype.element_ty), mask=dims < HEAD_DIM)
