"""The write kernel stores what plain torch stores, bit for bit, in its slots alone; a number that is none stays one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kvledger_engine.attention.backend import TorchBackend
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import HeadLayout
from kvledger_engine.attention.scaling import LARGEST
from kvledger_engine.kernels.cachewrite import write_cells
from tests.engine.kernels.paged import DEVICE, STORED, empty_cells

LAYOUT = HeadLayout(6, 3, 96)
BLOCK_SIZES = (16, 32)
SLOTS = (33, 0, 7, 95, 16)
"""Of six blocks of 16 tokens, or three of 32."""


def _planes(cells: LayerCells) -> list[Tensor]:
    planes = [cells.keys, cells.values]
    if cells.key_scales is not None and cells.value_scales is not None:
        planes += [cells.key_scales, cells.value_scales]
    return planes


def _bits(plane: Tensor) -> Tensor:
    return plane.contiguous().view(torch.uint8)


def _written(stored: torch.dtype, key: Tensor, value: Tensor, *, by_kernel: bool, block_size: int = 16) -> LayerCells:
    layout = HeadLayout(6, key.shape[1], key.shape[2])
    cells = empty_cells(layout, 96 // block_size, block_size, stored, DEVICE)
    slots = torch.tensor(SLOTS, device=DEVICE)
    if by_kernel:
        write_cells(cells, slots, key, value, largest=LARGEST.get(stored, 0.0))
    else:
        TorchBackend(layout, DEVICE).write(cells, slots, key, value)
    return cells


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("head_dim", "kv_heads"), [(64, 1), (96, 3), (128, 2)])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_it_stores_the_bits_that_plain_torch_stores_and_touches_nothing_else(
    name: str, given: torch.dtype, head_dim: int, kv_heads: int, block_size: int
) -> None:
    generator, shape = torch.Generator().manual_seed(1), (len(SLOTS), kv_heads, head_dim)
    key, value = (5 * torch.randn(shape, generator=generator).to(given).to(DEVICE) for _ in range(2))
    value[2, kv_heads - 1] = 0
    ours, theirs = (
        _written(STORED[name], key, value, by_kernel=by_kernel, block_size=block_size) for by_kernel in (True, False)
    )
    for mine, its in zip(_planes(ours), _planes(theirs), strict=True):
        if (name, given) == ("bf16", torch.float32) and DEVICE.type == "cpu":
            # The interpreter cuts float32 to bfloat16 where a card rounds: the last bit may differ.
            torch.testing.assert_close(mine, its, rtol=2.0**-7, atol=0, equal_nan=True)
        else:
            assert torch.equal(_bits(mine), _bits(its))


@pytest.mark.parametrize("name", ["int8", "fp8"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_a_vector_with_a_number_that_is_none_shows_it_in_its_scale(name: str, broken: float) -> None:
    key = torch.ones((5, 3, 96), device=DEVICE)
    key[3, 2, 17] = broken
    cells = _written(STORED[name], key, torch.ones_like(key), by_kernel=True)
    assert cells.key_scales is not None
    scales = cells.key_scales.flatten(1)[:, list(SLOTS)]
    assert not scales[2, 3].isfinite()
    assert int(scales.isfinite().sum()) == 5 * 3 - 1


def test_eight_bits_with_an_exponent_are_rounded_to_the_nearest_ties_to_even() -> None:
    # Every number of the format, halfway to the next one, and a little beside it; 448 keeps the scale at 1.
    numbers = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = torch.cat((numbers, (numbers[1:] + numbers[:-1]) / 2))
    beside = torch.cat((between, between * (1 - 2.0**-20), between * (1 + 2.0**-20))).clamp(max=448.0)
    vectors = torch.cat((beside, -beside, torch.zeros(-2 * len(beside) % 95))).unflatten(0, (-1, 95))
    key = torch.nn.functional.pad(vectors, (0, 1), value=448.0)[:, None].to(DEVICE)
    layout, slots = HeadLayout(1, 1, 96), torch.arange(len(key), device=DEVICE)
    cells = empty_cells(layout, 2, 16, torch.float8_e4m3fn, DEVICE)
    write_cells(cells, slots, key, key, largest=448.0)
    wanted = key[:, 0].to(torch.float8_e4m3fn)
    assert torch.equal(cells.keys[0].flatten(0, 1)[: len(key)].float(), wanted.float())


def test_nothing_to_write_is_no_launch() -> None:
    cells = empty_cells(LAYOUT, 1, 16, torch.float32, DEVICE)
    none = torch.empty((0, 3, 96), device=DEVICE)
    write_cells(cells, torch.empty(0, dtype=torch.int64, device=DEVICE), none, none, largest=0.0)
    assert bool(cells.keys.isnan().all())
