"""LayerCells: one layer's keys and values as the store keeps them. Views; owns no memory and computes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerCells:
    """`keys` and `values` [kv_heads, blocks, block_size_tokens, head_dim], in the store's format.

    Quantised formats have `key_scales` and `value_scales`, float32[kv_heads, blocks, block_size_tokens]: what is stored
    times its scale is the vector. None elsewhere. `layer` is the model's number of it.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None
    layer: int = 0
