"""The copy kernel brings whole blocks of all layers and heads, bit for bit, and touches no other block."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from kvledger_engine.kernels.blockcopy import copy_blocks
from tests.engine.kernels.paged import DEVICE


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("inner", [*product((16, 32), (64, 96, 128)), (16,), (32,)])
def test_it_copies_any_format_bit_for_bit(dtype: torch.dtype, inner: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(2)
    # Any bits at all, many of them no numbers.
    size = (2, 3, 7, *inner[:-1], inner[-1] * dtype.itemsize)
    bits = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8).to(DEVICE)
    before = bits.clone()
    sources, targets = torch.tensor([0, 4, 4], device=DEVICE), torch.tensor([5, 1, 6], device=DEVICE)
    copy_blocks(bits.view(dtype), sources, targets)
    assert torch.equal(bits[:, :, targets], before[:, :, sources])
    rest = [0, 2, 3, 4]
    assert torch.equal(bits[:, :, rest], before[:, :, rest])


def test_no_copies_are_no_launch() -> None:
    none = torch.empty(0, dtype=torch.int64, device=DEVICE)
    cells = torch.ones((1, 1, 2, 16, 4), device=DEVICE)
    copy_blocks(cells, none, none)
    assert bool((cells == 1).all())
