"""What moves and reads the paged cache: plain torch on a CPU, Triton's kernels on CUDA. They are chosen only here."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from kvledger_engine.attention.decoding import Decoding, StepPlan
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import HeadLayout, plan_attention
from kvledger_engine.attention.reference import Gather, attend
from kvledger_engine.attention.scaling import LARGEST, quantise
from kvledger_engine.batch import Batch
from kvledger_engine.errors import BadConfig

TORCH, TRITON = "torch", "triton"
_CARDS = {torch.bfloat16: ((8, 0), "fp32"), torch.float8_e4m3fn: ((8, 9), "int8")}
"""The least compute capability that a dtype takes, and what to use below it."""


class Backend(Protocol):
    """Writes, copies and attends over cells of any format. A plan is made once a step and group, for all its layers."""

    def plan(self, batch: Batch, group: int) -> Any:
        """What `attend` wants to know of a step in one cache group."""

    def attend(self, query: Tensor, cells: LayerCells, plan: Any) -> Tensor:
        """What each of the step's queries sees in one layer: [t, heads, head_dim], like `query`."""

    def write(self, cells: LayerCells, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store one layer's keys and values, [t, kv_heads, head_dim] each, at distinct slots, int64[t]."""

    def copy(self, planes: Tensor, sources: Tensor, targets: Tensor) -> None:
        """Copy blocks, int64[c] each, of [layers, kv_heads, blocks, …]; none may be both a source and a target."""


class TorchBackend:
    """Plain torch: the path of a CPU. `layers` is how many of them attend in a step."""

    def __init__(self, layout: HeadLayout, device: torch.device, *, layers: int = 1) -> None:
        self._layout, self._device, self._gather = layout, device, Gather()
        self._decoding = Decoding(layout, layers=layers)

    def plan(self, batch: Batch, group: int) -> StepPlan:
        """See `Backend.plan`."""
        moves, others = self._decoding.plan(batch, group)
        if not moves:
            return StepPlan(plan_attention(batch, self._layout, self._device, group=group))
        if not len(others):
            return StepPlan(None, moves)
        tokens = np.flatnonzero(np.isin(np.repeat(np.arange(len(batch.counts)), batch.counts), others))
        prompts = plan_attention(batch, self._layout, self._device, group=group, rows=others)
        return StepPlan(prompts, moves, torch.from_numpy(tokens))

    def attend(self, query: Tensor, cells: LayerCells, plan: StepPlan) -> Tensor:
        """See `Backend.attend`."""
        self._decoding.attended()
        if not plan.moves:
            assert plan.prompts is not None
            return attend(query, cells, plan.prompts, self._gather)
        found = [(residents.attend(query, cells, moves), moves.rows) for residents, moves in plan.moves]
        if plan.prompts is None and len(found) == 1:
            return found[0][0]
        out = torch.empty_like(query)
        if plan.prompts is not None and plan.prompt_tokens is not None:
            found.append((attend(query, cells, plan.prompts, self._gather), plan.prompt_tokens))
        for rows, tokens in found:
            out.index_copy_(0, tokens, rows)
        return out

    def write(self, cells: LayerCells, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """See `Backend.write`."""
        _put(cells.keys, cells.key_scales, slots, key.transpose(0, 1))
        _put(cells.values, cells.value_scales, slots, value.transpose(0, 1))

    def copy(self, planes: Tensor, sources: Tensor, targets: Tensor) -> None:
        """See `Backend.copy`."""
        bits = planes.view(torch.int8) if planes.dtype in LARGEST else planes
        bits.index_copy_(2, targets, bits.index_select(2, sources))


def _put(stored: Tensor, scales: Tensor | None, slots: Tensor, vectors: Tensor) -> None:
    if scales is None:
        stored.flatten(1, 2).index_copy_(1, slots, vectors.to(stored.dtype))
        return
    cells, of_each = quantise(vectors, stored.dtype)
    stored.view(torch.int8).flatten(1, 2).index_copy_(1, slots, cells.view(torch.int8))
    scales.flatten(1).index_copy_(1, slots, of_each)


def check_card(stored: torch.dtype, capability: tuple[int, int]) -> None:
    """Raise `BadConfig` for cells that a card of this compute capability has no arithmetic for."""
    needed, instead = _CARDS.get(stored, ((0, 0), ""))
    if capability < needed:
        raise BadConfig(
            f"kv_format of {stored} on a card of compute capability {capability[0]}.{capability[1]}: "
            f"it takes {needed[0]}.{needed[1]}; use {instead}"
        )


def backend_name(device_type: str, *, has_triton: bool) -> str:
    """Which backend tensors on such a device take: "triton" on CUDA, "torch" anywhere else.

    Raises `BadConfig` for CUDA without triton: plain torch there would be slow without anybody knowing.
    """
    if device_type != "cuda":
        return TORCH
    if not has_triton:
        raise BadConfig("device='cuda' needs triton: pip install 'kvledger[kernels]', or use cpu")
    return TRITON


def backend_for(layout: HeadLayout, device: torch.device, stored: torch.dtype, *, layers: int = 1) -> Backend:
    """The backend for a store of such cells on a device, of a model of `layers`.

    Raises `BadConfig` where one cannot be had.
    """
    if backend_name(device.type, has_triton=find_spec("triton") is not None) == TORCH:
        return TorchBackend(layout, device, layers=layers)
    from kvledger_engine.kernels.backend import TritonBackend  # triton is loaded only where there is a card for it

    check_card(stored, torch.cuda.get_device_capability(device))
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return TritonBackend(layout, device, stored, multiprocessors=multiprocessors)
