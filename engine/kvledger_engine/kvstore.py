"""KvStore: the keys and values of all blocks, as tensors. Owns the memory; the ledger says whose it is."""

from __future__ import annotations

import torch
from torch import Tensor

from kvledger_engine.attention.backend import Backend, backend_for
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.attention.scaling import LARGEST
from kvledger_engine.errors import NotEnoughMemory
from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.device import device_failures


class KvStore:
    """Paged keys and values.

    `keys` and `values` are [rows, kv_heads, capacity_blocks, block_size_tokens, head_dim]: a head's slots lie together,
    so that what attention gathers is laid out as it multiplies. Slot = block × block_size_tokens + offset. A row is a
    layer of a cache group; groups share the rows, since each block belongs to one of them. Quantised formats (a dtype
    of `LARGEST`) have `scales` of the keys and of the values, float32, shaped like these without head_dim. All memory
    is taken and touched at the start, filled with `fill`; an int8 shows it in its scale alone. Raises
    `NotEnoughMemory`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        capacity_blocks: int,
        block_size_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        fill: float = 0.0,
        backend: Backend | None = None,
    ) -> None:
        layout = HeadLayout(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        self.backend = (
            backend_for(layout, device, dtype, layers=config.num_hidden_layers) if backend is None else backend
        )
        groups = config.cache_groups()
        self.row_of = [0] * config.num_hidden_layers
        for layers in groups:
            for row, layer in enumerate(layers):
                self.row_of[layer] = row
        shape = (max(map(len, groups)), layout.kv_heads, capacity_blocks, block_size_tokens)
        try:
            with device_failures():
                self.keys, self.values = (_filled((*shape, layout.head_dim), fill, dtype, device) for _ in range(2))
                self.scales = tuple(_filled(shape, fill, torch.float32, device) for _ in range(2 * (dtype in LARGEST)))
        except MemoryError as error:
            wanted = 2 * torch.Size(shape).numel() * (layout.head_dim * dtype.itemsize + 4 * (dtype in LARGEST))
            raise NotEnoughMemory(
                f"the KV cache of {capacity_blocks:,} blocks", wanted, "use fewer blocks, or a smaller kv_format"
            ) from error

    @property
    def planes(self) -> tuple[Tensor, ...]:
        """Everything that belongs to a block, [rows, kv_heads, capacity_blocks, …] each."""
        return (self.keys, self.values, *self.scales)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, scales included."""
        return sum(plane.nbytes for plane in self.planes)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, int64[c] each; no block may be both a source and a target."""
        for plane in self.planes:
            self.backend.copy(plane, sources, targets)

    def cells_of(self, layer: int) -> LayerCells:
        """Views of one layer's cells."""
        row = self.row_of[layer]
        key_scales, value_scales = [plane[row] for plane in self.scales] or (None, None)
        return LayerCells(self.keys[row], self.values[row], key_scales, value_scales, layer)

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store one layer's keys and values, [t, kv_heads, head_dim] each, at distinct slots, int64[t]."""
        self.backend.write(self.cells_of(layer), slots, key, value)


def _filled(shape: tuple[int, ...], fill: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype == torch.int8:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.full(shape, fill, dtype=dtype, device=device)
