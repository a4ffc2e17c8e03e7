"""KvStore: the keys and values of all blocks, as tensors. Owns the memory; the ledger says whose it is."""

from __future__ import annotations

import torch
from torch import Tensor

from kvledger_engine.errors import NotEnoughMemory
from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.device import device_failures


class KvStore:
    """Paged keys and values.

    `keys` and `values` are [layers, kv_heads, capacity_blocks, block_size_tokens, head_dim]: a head's slots lie
    together, so that what attention gathers is laid out as it multiplies. Slot = block × block_size_tokens + offset.
    All memory is taken and touched at the start, filled with `fill`. Raises `NotEnoughMemory`.
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
    ) -> None:
        kv_heads, head_dim = config.num_key_value_heads, config.head_dim
        shape = (config.num_hidden_layers, kv_heads, capacity_blocks, block_size_tokens, head_dim)
        try:
            with device_failures():
                self.keys, self.values = (torch.full(shape, fill, dtype=dtype, device=device) for _ in range(2))
        except MemoryError as error:
            wanted = 2 * torch.Size(shape).numel() * dtype.itemsize
            raise NotEnoughMemory(
                f"the KV cache of {capacity_blocks:,} blocks", wanted, "use fewer blocks, or a smaller dtype"
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.keys.nbytes + self.values.nbytes

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Copy whole blocks, int64[c] each; no block may be both a source and a target."""
        for cells in (self.keys, self.values):
            cells.index_copy_(2, targets, cells.index_select(2, sources))

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Store one layer's keys and values, [t, kv_heads, head_dim] each, at distinct slots, int64[t]."""
        self.keys_of(layer).index_copy_(1, slots, key.transpose(0, 1))
        self.values_of(layer).index_copy_(1, slots, value.transpose(0, 1))

    def keys_of(self, layer: int) -> Tensor:
        """A view of one layer's keys, [kv_heads, slots, head_dim]."""
        return self.keys[layer].flatten(1, 2)

    def values_of(self, layer: int) -> Tensor:
        """A view of one layer's values, [kv_heads, slots, head_dim]."""
        return self.values[layer].flatten(1, 2)
