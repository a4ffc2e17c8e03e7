"""Attention over a plan in plain torch: gather each tile's keys and values, multiply, softmax, multiply.

Slow beside a kernel that reads pages in place, and the oracle such a kernel is held against. Softmax is at least
float32 inside torch, whatever the dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvledger_engine.attention.plan import AttentionPlan, Tile


def attend(query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan) -> Tensor:
    """What each query sees: [t, heads, head_dim], like `query`, from one layer's [kv_heads, slots, head_dim]."""
    attended = [_attend_tile(query, keys, values, tile) for tile in plan.tiles]
    return torch.cat(attended).index_select(0, plan.order)


def _attend_tile(query: Tensor, keys: Tensor, values: Tensor, tile: Tile) -> Tensor:
    """[segments × queries, heads, head_dim]. Query heads that share a KV head are queries of it: no key is repeated."""
    kv_heads, segments = keys.shape[0], tile.segments
    grouped = query.index_select(0, tile.queries).unflatten(1, (kv_heads, -1)).unflatten(0, (segments, -1))
    folded = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
    seen_keys, seen_values = (
        cells.index_select(1, tile.slots).unflatten(1, (segments, -1)).transpose(0, 1) for cells in (keys, values)
    )
    attended = scaled_dot_product_attention(folded, seen_keys, seen_values, attn_mask=tile.mask)
    unfolded = attended.unflatten(2, (grouped.shape[3], -1)).permute(0, 3, 1, 2, 4)
    return unfolded.flatten(2, 3).flatten(0, 1)
