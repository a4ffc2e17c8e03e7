"""The same decode by others: torch's SDPA over gathered keys and values, and vLLM's Triton kernel if it is there."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.cases import Case, Tensors
from kvledger_engine.attention.scaling import restore

Call = Callable[[], Tensor]
_SEGMENTS = 16


def gathered_sdpa(case: Case, given: Tensors) -> Call:
    """SDPA over keys and values that were gathered beforehand: the gather is not measured, so this flatters it."""
    begin = case.context_tokens - case.seen_tokens
    positions = torch.arange(begin, case.context_tokens, device=given.query.device)
    slots = given.table.long()[:, positions // case.block_size_tokens] * case.block_size_tokens
    slots = (slots + positions % case.block_size_tokens).flatten()

    def gathered(cells: Tensor, scales: Tensor | None) -> Tensor:
        vectors: Tensor = cells.flatten(1, 2)[:, slots]
        if scales is not None:
            vectors = restore(vectors, scales.flatten(1)[:, slots], given.query.dtype)
        seen: Tensor = vectors.unflatten(1, (case.rows, -1)).transpose(0, 1).contiguous()
        return seen

    keys, values = (
        gathered(given.cells.keys, given.cells.key_scales),
        gathered(given.cells.values, given.cells.value_scales),
    )
    query = given.query[:, :, None]
    return lambda: scaled_dot_product_attention(query, keys, values, enable_gqa=True)[:, :, 0]


def vllm_unified(case: Case, given: Tensors) -> Call | None:
    """vLLM's `unified_attention` over its own layout of the same numbers; None where it is not installed.

    Only for cells in the query's dtype: its quantised modes have scales of another layout.
    """
    if find_spec("vllm") is None or given.cells.keys.dtype != given.query.dtype:
        return None
    unified: Any = import_module("vllm.v1.attention.ops.triton_unified_attention").unified_attention
    # Theirs is [blocks, block_size, kv_heads, head_dim].
    keys, values = (cells.permute(1, 2, 0, 3).contiguous() for cells in (given.cells.keys, given.cells.values))
    out, device, heads = torch.empty_like(given.query), given.query.device, case.layout.heads
    threshold = max(1, 128 // case.layout.kv_heads)
    parts = torch.empty((threshold, heads, _SEGMENTS, case.layout.head_dim), device=device)
    tops, sums = (torch.empty((threshold, heads, _SEGMENTS), device=device) for _ in range(2))
    starts = torch.arange(case.rows + 1, dtype=torch.int32, device=device)

    def call() -> Tensor:
        unified(
            q=given.query,
            k=keys,
            v=values,
            out=out,
            cu_seqlens_q=starts,
            max_seqlen_q=1,
            seqused_k=given.rows.contexts,
            max_seqlen_k=case.context_tokens,
            softmax_scale=case.layout.head_dim**-0.5,
            causal=True,
            window_size=(case.window_tokens - 1, 0) if case.window_tokens else (-1, -1),
            block_table=given.table,
            softcap=0.0,
            q_descale=None,
            k_descale=None,
            v_descale=None,
            seq_threshold_3D=threshold,
            num_par_softmax_segments=_SEGMENTS,
            softmax_segm_output=parts,
            softmax_segm_max=tops,
            softmax_segm_expsum=sums,
        )
        return out

    return call
