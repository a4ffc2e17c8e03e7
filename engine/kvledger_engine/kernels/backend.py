"""The cache through Triton: decodes read pages in place.

Prompts, numbers of 64 bits, and groups that keep sinks beside a window go the way of plain torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvledger.views import I64
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import AttentionPlan, HeadLayout, plan_attention
from kvledger_engine.attention.reference import Gather, attend
from kvledger_engine.attention.rows import DecodeRows
from kvledger_engine.attention.scaling import LARGEST
from kvledger_engine.batch import Batch
from kvledger_engine.kernels.blockcopy import copy_blocks
from kvledger_engine.kernels.cachewrite import write_cells
from kvledger_engine.kernels.decode import paged_decode, splits_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlan:
    """A step cut in two: `decodes` for the kernel and `prompts` for plain torch, None where there are none.

    `decode_tokens` and `prompt_tokens` int64 are their tokens in the batch; None = all of them.
    """

    decodes: DecodeRows | None
    prompts: AttentionPlan | None
    decode_tokens: Tensor | None = None
    prompt_tokens: Tensor | None = None


class TritonBackend:
    """See `attention.backend.Backend`. A card of `multiprocessors` is filled by splitting contexts.

    `stored` is the dtype of the cells.
    """

    def __init__(self, layout: HeadLayout, device: torch.device, stored: torch.dtype, *, multiprocessors: int) -> None:
        self._layout, self._device, self._multiprocessors = layout, device, multiprocessors
        self._by_kernel, self._gather = stored != torch.float64, Gather()

    def plan(self, batch: Batch, group: int) -> MixedPlan:
        """See `Backend.plan`."""
        single = (batch.counts == 1) & (self._by_kernel and not batch.tables[group].sink_tokens)
        decoding, prompting = np.flatnonzero(single), np.flatnonzero(~single)
        rows = self._rows(batch, group, decoding) if len(decoding) else None
        if not len(prompting):
            return MixedPlan(decodes=rows, prompts=None)
        prompts = plan_attention(batch, self._layout, self._device, group=group, rows=prompting)
        if rows is None:
            return MixedPlan(decodes=None, prompts=prompts)
        of_decodes = np.repeat(single, batch.counts)
        return MixedPlan(
            decodes=rows,
            prompts=prompts,
            decode_tokens=self._tensor(np.flatnonzero(of_decodes)),
            prompt_tokens=self._tensor(np.flatnonzero(~of_decodes)),
        )

    def _rows(self, batch: Batch, group: int, rows: I64) -> DecodeRows:
        tables = batch.tables[group]
        contexts = (batch.starts + batch.counts)[rows].astype(np.int32)
        return DecodeRows(
            blocks=self._tensor(tables.blocks),
            bases=self._tensor((tables.offsets[:-1] - tables.skipped)[rows].astype(np.int32)),
            contexts=self._tensor(contexts),
            longest_tokens=int(contexts.max()),
            window_tokens=tables.window_tokens,
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def attend(self, query: Tensor, cells: LayerCells, plan: MixedPlan) -> Tensor:
        """See `Backend.attend`."""
        if plan.prompts is None:
            return self._decode(query, cells, plan)
        # The plan's queries are numbered as in the batch, and its answer holds those of the prompts alone.
        of_prompts = attend(query, cells, plan.prompts, self._gather)
        if plan.decode_tokens is None or plan.prompt_tokens is None:
            return of_prompts
        out = torch.empty_like(query)
        out[plan.prompt_tokens] = of_prompts
        out[plan.decode_tokens] = self._decode(query.index_select(0, plan.decode_tokens), cells, plan)
        return out

    def _decode(self, query: Tensor, cells: LayerCells, plan: MixedPlan) -> Tensor:
        rows = plan.decodes
        assert rows is not None
        seen = min(rows.longest_tokens, rows.window_tokens or rows.longest_tokens)
        splits = splits_of(len(query) * cells.keys.shape[0], seen, self._multiprocessors)
        return paged_decode(query, cells, rows, splits=splits)

    def write(self, cells: LayerCells, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """See `Backend.write`."""
        write_cells(cells, slots, key, value, largest=LARGEST.get(cells.keys.dtype, 0.0))

    def copy(self, planes: Tensor, sources: Tensor, targets: Tensor) -> None:
        """See `Backend.copy`."""
        copy_blocks(planes, sources, targets)
