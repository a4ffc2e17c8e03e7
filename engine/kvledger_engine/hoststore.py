"""HostStore: keys and values in host memory, beside a `KvStore`. Owns the memory; `swaps` says whose it is."""

from __future__ import annotations

import torch
from torch import Tensor

from kvledger_engine.errors import NotEnoughMemory
from kvledger_engine.kvstore import KvStore
from kvledger_engine.model.device import device_failures

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Blocks travel as whole numbers of the width of their cells: a NaN, or a format without arithmetic, is copied too."""


class HostStore:
    """`blocks` blocks of the same shape and formats as those of `store`, scales included.

    All memory is taken and touched at the start, page-locked where the store's is a card's. Raises `NotEnoughMemory`.
    """

    def __init__(self, store: KvStore, blocks: int) -> None:
        self._planes = [_bits(plane) for plane in store.planes]
        shapes = [(*plane.shape[:2], blocks, *plane.shape[3:]) for plane in self._planes]
        pinned = blocks > 0 and any(plane.is_cuda for plane in self._planes)
        try:
            with device_failures():
                self._host = [
                    torch.zeros(shape, dtype=plane.dtype, pin_memory=pinned)
                    for shape, plane in zip(shapes, self._planes, strict=True)
                ]
        except MemoryError as error:
            wanted = sum(torch.Size(s).numel() * p.itemsize for s, p in zip(shapes, self._planes, strict=True))
            raise NotEnoughMemory(f"{blocks:,} blocks of host memory", wanted, "use fewer --swap-blocks") from error

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, scales included."""
        return sum(plane.nbytes for plane in self._host)

    def save(self, sources: Tensor, hosts: Tensor) -> None:
        """Copy blocks of the store, int64[c] on its device, to distinct host blocks, int64[c] in host memory."""
        if len(hosts):
            for plane, host in zip(self._planes, self._host, strict=True):
                host.index_copy_(2, hosts, plane.index_select(2, sources).to(host.device))

    def restore(self, hosts: Tensor, targets: Tensor) -> None:
        """Copy host blocks, int64[c] in host memory, to distinct blocks of the store, int64[c] on its device."""
        if len(hosts):
            for plane, host in zip(self._planes, self._host, strict=True):
                plane.index_copy_(2, targets, host.index_select(2, hosts).to(plane.device))


def _bits(plane: Tensor) -> Tensor:
    return plane.view(_BITS[plane.element_size()])
