"""Attention over a plan in plain torch: gather each tile's keys and values, multiply, softmax, multiply.

Slow beside a kernel that reads pages in place, and the oracle such a kernel is held against. Softmax is at least
float32 inside torch, whatever the dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvledger_engine.attention.plan import AttentionPlan, Tile


class Gather:
    """Keys and values of a tile, brought together in memory that is kept: the largest tile's, rounded up.

    Fresh pages for every layer cost three times what the gather does.
    """

    def __init__(self) -> None:
        self._kept: list[Tensor | None] = [None, None]

    def __call__(self, keys: Tensor, values: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """[kv_heads, slots gathered, head_dim] of both, valid until the next call."""
        return self._gather(0, keys, slots), self._gather(1, values, slots)

    def _gather(self, which: int, cells: Tensor, slots: Tensor) -> Tensor:
        kv_heads, _, head_dim = cells.shape
        wanted, kept = kv_heads * len(slots) * head_dim, self._kept[which]
        if kept is None or kept.numel() < wanted:
            # The old one goes first; contexts grow by a token a step, so the new one is larger than asked for.
            self._kept[which] = kept = None
            self._kept[which] = kept = cells.new_empty(1 << (wanted - 1).bit_length())
        gathered = kept[:wanted].view(kv_heads, len(slots), head_dim)
        return torch.index_select(cells, 1, slots, out=gathered)


def attend(query: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, gather: Gather) -> Tensor:
    """What each query sees: [t, heads, head_dim], like `query`, from one layer's [kv_heads, slots, head_dim]."""
    attended = [_attend_tile(query, keys, values, tile, gather) for tile in plan.tiles]
    return torch.cat(attended).index_select(0, plan.order)


def _attend_tile(query: Tensor, keys: Tensor, values: Tensor, tile: Tile, gather: Gather) -> Tensor:
    """[segments × queries, heads, head_dim]. Query heads that share a KV head are queries of it: no key is repeated."""
    kv_heads, segments = keys.shape[0], tile.segments
    grouped = query.index_select(0, tile.queries).unflatten(1, (kv_heads, -1)).unflatten(0, (segments, -1))
    folded = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
    seen_keys, seen_values = (
        cells.unflatten(1, (segments, -1)).transpose(0, 1) for cells in gather(keys, values, tile.slots)
    )
    attended = scaled_dot_product_attention(folded, seen_keys, seen_values, attn_mask=tile.mask)
    unfolded: Tensor = attended.unflatten(2, (grouped.shape[3], -1)).permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
    return unfolded
