"""Paged caches made by hand for a kernel and for its oracle: scattered blocks, everything foreign in them NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvledger_engine.attention.backend import TorchBackend
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.attention.scaling import LARGEST
from kvledger_engine.batch import Batch
from tests.engine.model.batches import windowed

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STORED = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 6e-2}
"""The largest difference from the oracle by the query's dtype: a few roundings of numbers below 4.

Triton's interpreter cuts float32 to bfloat16 where a card rounds: twice the error, always to one side.
"""


@dataclass(frozen=True)
class Paged:
    """One layer's cells, the step that reads them, and its queries, on a device."""

    step: Batch
    layout: HeadLayout
    cells: LayerCells
    query: Tensor

    def oracle(self) -> Tensor:
        """What plain torch sees, in float32 from the same cells."""
        backend = TorchBackend(self.layout, self.query.device)
        return backend.attend(self.query.float(), self.cells, backend.plan(self.step, 0))


def empty_cells(
    layout: HeadLayout, blocks: int, block_size: int, stored: torch.dtype, device: torch.device
) -> LayerCells:
    """Cells in which every vector is NaN until it is written."""
    shape = (layout.kv_heads, blocks, block_size)
    if stored not in LARGEST:
        keys, values = (torch.full((*shape, layout.head_dim), torch.nan, dtype=stored, device=device) for _ in range(2))
        return LayerCells(keys, values)
    keys, values = (torch.zeros((*shape, layout.head_dim), dtype=stored, device=device) for _ in range(2))
    key_scales, value_scales = (torch.full(shape, torch.nan, device=device) for _ in range(2))
    return LayerCells(keys, values, key_scales, value_scales)


def paged(
    lengths: Sequence[int],
    layout: HeadLayout,
    *,
    block_size: int,
    stored: torch.dtype,
    device: torch.device,
    window_tokens: int = 0,
    asked: torch.dtype = torch.float32,
    seed: int = 0,
) -> Paged:
    """Decodes over contexts of these lengths. Blocks of nobody, ends of blocks and what a window has left are NaN.

    `asked` is the queries' dtype: in float32 no format rounds anything, and a wrong cell shows.
    """
    generator = torch.Generator().manual_seed(seed)
    step = windowed([(length - 1, 1) for length in lengths], window_tokens, block_size_tokens=block_size)
    tables = step.tables[0]
    cells = empty_cells(layout, len(step.table_blocks) + 1, block_size, stored, device)
    slots = []
    for row, length in enumerate(lengths):
        seen = np.arange(max(0, length - window_tokens) if window_tokens else 0, length)
        blocks = tables.blocks[tables.offsets[row] - tables.skipped[row] + seen // block_size].astype(np.int64)
        slots.append(blocks * block_size + seen % block_size)
    at = torch.from_numpy(np.concatenate(slots)).to(device)
    shape = (len(at), layout.kv_heads, layout.head_dim)
    key, value = (torch.randn(shape, generator=generator).to(device) for _ in range(2))
    TorchBackend(layout, device).write(cells, at, key, value)
    query = torch.randn((len(lengths), layout.heads, layout.head_dim), generator=generator)
    return Paged(step, layout, cells, query.to(asked).to(device))
