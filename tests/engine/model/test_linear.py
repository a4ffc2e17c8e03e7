"""Packed weights and the normalisation of a CPU: other ways to the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear as plain
from torch.nn.functional import rms_norm

from kvledger_engine.model.linear import LEAST_ELEMENTS, linear, packed
from kvledger_engine.model.norm import RmsNorm


@pytest.mark.parametrize("rows", [1, 32, 100])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_weight_gives_the_product_of_the_plain_one(rows: int, biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(LEAST_ELEMENTS // 512, 512, generator=generator)
    bias = torch.randn(len(weight), generator=generator) if biased else None
    values = torch.randn(rows, 512, generator=generator)
    ordered = packed(weight)
    exact = plain(values.double(), weight.double(), None if bias is None else bias.double())
    with torch.inference_mode():
        product = linear(values, ordered, bias)
    assert product.dtype == torch.float32
    torch.testing.assert_close(product.double(), exact, atol=1e-3, rtol=1e-4)
    assert ordered.nbytes == weight.nbytes
    assert ordered.shape == weight.shape


def test_small_weights_and_other_dtypes_stay_as_they_are() -> None:
    small, half, double = (
        torch.ones(8, 8),
        torch.ones(1024, 1024, dtype=torch.bfloat16),
        torch.ones(1024, 1024).double(),
    )
    assert all(packed(weight) is weight for weight in (small, half, double))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 64), (3, 4, 32)])
def test_the_norm_is_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    values = (3 * torch.randn(shape, generator=generator)).to(dtype)
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    found, expected = RmsNorm(0.1)(values, weight), rms_norm(values, weight.shape, weight, 0.1)
    torch.testing.assert_close(found, expected, atol=1e-5 if dtype != torch.bfloat16 else 0, rtol=1e-5)
