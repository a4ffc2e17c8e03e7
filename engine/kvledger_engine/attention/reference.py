"""Attention over a plan in plain torch: gather each tile's keys and values, multiply, softmax, multiply.

Slow beside a kernel that reads pages in place, and the oracle such a kernel is held against. Cells in another format
than the query's are brought to its dtype once gathered. Softmax is at least float32 inside torch, whatever the dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import AttentionPlan, Tile
from kvledger_engine.attention.scaling import LARGEST, restore


class Gather:
    """Keys and values of a tile, brought together in memory that is kept: the largest tile's, rounded up.

    Fresh pages for every layer cost three times what the gather does.
    """

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def __call__(self, cells: LayerCells, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[kv_heads, slots gathered, head_dim] of both in `dtype`, valid until the next call."""
        keys, values = self._gather(0, cells.keys, slots), self._gather(1, cells.values, slots)
        if cells.key_scales is not None and cells.value_scales is not None:
            key_scales, value_scales = (
                of.flatten(1).index_select(1, slots) for of in (cells.key_scales, cells.value_scales)
            )
            return restore(keys, key_scales, dtype), restore(values, value_scales, dtype)
        return keys.to(dtype), values.to(dtype)

    def _gather(self, which: int, cells: Tensor, slots: Tensor) -> Tensor:
        kv_heads, _, _, head_dim = cells.shape
        # Torch has no gather for numbers of eight bits with an exponent: they travel as whole ones.
        bits = cells.view(torch.int8) if cells.dtype in LARGEST else cells
        wanted, kept = kv_heads * len(slots) * head_dim, self._kept.get(which)
        if kept is None or kept.numel() < wanted or kept.dtype != bits.dtype:
            # The old one goes first; contexts grow by a token a step, so the new one is larger than asked for.
            kept = None
            self._kept.pop(which, None)
            self._kept[which] = kept = bits.new_empty(1 << (wanted - 1).bit_length())
        gathered = kept[:wanted].view(kv_heads, len(slots), head_dim)
        return torch.index_select(bits.flatten(1, 2), 1, slots, out=gathered).view(cells.dtype)


def attend(query: Tensor, cells: LayerCells, plan: AttentionPlan, gather: Gather) -> Tensor:
    """What each query of the plan sees in one layer: [tokens, heads, head_dim], like `query`."""
    attended = [_attend_tile(query, cells, tile, gather) for tile in plan.tiles]
    return torch.cat(attended).index_select(0, plan.order)


def _attend_tile(query: Tensor, cells: LayerCells, tile: Tile, gather: Gather) -> Tensor:
    """[segments × queries, heads, head_dim]. Query heads that share a KV head are queries of it: no key is repeated."""
    kv_heads, segments = cells.keys.shape[0], tile.segments
    grouped = query.index_select(0, tile.queries).unflatten(1, (kv_heads, -1)).unflatten(0, (segments, -1))
    folded = grouped.permute(0, 2, 3, 1, 4).flatten(2, 3)
    seen_keys, seen_values = (
        seen.unflatten(1, (segments, -1)).transpose(0, 1) for seen in gather(cells, tile.slots, query.dtype)
    )
    attended = scaled_dot_product_attention(folded, seen_keys, seen_values, attn_mask=tile.mask)
    unfolded: Tensor = attended.unflatten(2, (grouped.shape[3], -1)).permute(0, 3, 1, 2, 4).flatten(2, 3).flatten(0, 1)
    return unfolded
