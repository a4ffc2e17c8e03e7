"""What is measured on a card: shapes of decodes, and the tensors of one of them in our layout. Measures nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvledger_engine.attention.backend import TorchBackend
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.attention.rows import DecodeRows
from kvledger_engine.attention.scaling import LARGEST

LLAMA_8B = HeadLayout(32, 8, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Decodes of `rows` sequences with `context_tokens` each; sizes are those of Llama-3.1-8B unless said otherwise."""

    rows: int
    context_tokens: int
    stored: torch.dtype = torch.bfloat16
    window_tokens: int = 0
    layout: HeadLayout = LLAMA_8B
    block_size_tokens: int = 16

    @property
    def name(self) -> str:
        """One line for a table."""
        window = f", window {self.window_tokens}" if self.window_tokens else ""
        return f"{self.rows} × {self.context_tokens:,} tokens, {str(self.stored).removeprefix('torch.')}{window}"

    @property
    def seen_tokens(self) -> int:
        """Tokens of one row that its query sees."""
        return min(self.context_tokens, self.window_tokens or self.context_tokens)

    @property
    def read_bytes(self) -> int:
        """Keys, values and scales that one layer's decode must read once."""
        vector = self.layout.head_dim * self.stored.itemsize + 4 * (self.stored in LARGEST)
        return 2 * self.rows * self.seen_tokens * self.layout.kv_heads * vector


CASES = (
    Case(rows=1, context_tokens=4_097),
    Case(rows=1, context_tokens=131_072),
    Case(rows=16, context_tokens=8_192),
    Case(rows=128, context_tokens=1_024),
    Case(rows=128, context_tokens=4_096),
    Case(rows=64, context_tokens=8_192, window_tokens=4_096),
    Case(rows=64, context_tokens=8_192, stored=torch.int8),
    Case(rows=64, context_tokens=8_192, stored=torch.float8_e4m3fn),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """One layer's cells in scattered blocks; `table` int32[rows, blocks] names them, and `rows` does for our kernel."""

    query: Tensor
    cells: LayerCells
    table: Tensor
    rows: DecodeRows


def tensors(case: Case, device: torch.device) -> Tensors:
    """Random numbers for a case, the same every time."""
    generator = torch.Generator(device=device).manual_seed(0)
    size, layout = case.block_size_tokens, case.layout
    blocks = -(-case.context_tokens // size)
    table = torch.randperm(case.rows * blocks, generator=generator, device=device).to(torch.int32).view(case.rows, -1)
    shape = (layout.kv_heads, case.rows * blocks, size)
    cells = _cells(shape, layout.head_dim, case.stored, device)
    slots = torch.arange(case.rows * blocks * size, device=device)
    backend = TorchBackend(layout, device)
    for begin in range(0, len(slots), 1 << 16):
        part = slots[begin : begin + (1 << 16)]
        key, value = (
            torch.randn((len(part), layout.kv_heads, layout.head_dim), generator=generator, device=device)
            for _ in range(2)
        )
        backend.write(cells, part, key, value)
    query = torch.randn((case.rows, layout.heads, layout.head_dim), generator=generator, device=device)
    contexts = torch.full((case.rows,), case.context_tokens, dtype=torch.int32, device=device)
    rows = DecodeRows(
        blocks=table.flatten(),
        bases=torch.arange(case.rows, dtype=torch.int32, device=device) * blocks,
        contexts=contexts,
        longest_tokens=case.context_tokens,
        window_tokens=case.window_tokens,
    )
    return Tensors(query=query.to(torch.bfloat16), cells=cells, table=table, rows=rows)


def _cells(shape: tuple[int, ...], head_dim: int, stored: torch.dtype, device: torch.device) -> LayerCells:
    keys, values = (torch.empty((*shape, head_dim), dtype=stored, device=device) for _ in range(2))
    if stored not in LARGEST:
        return LayerCells(keys, values)
    key_scales, value_scales = (torch.empty(shape, device=device) for _ in range(2))
    return LayerCells(keys, values, key_scales, value_scales)
