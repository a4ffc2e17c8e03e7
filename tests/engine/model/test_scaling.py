"""Quantised vectors: within half a step of what they were, whatever their size, and never silently wrong."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvledger_engine.attention.scaling import LARGEST, quantise, restore

DTYPES = sorted(LARGEST, key=str)
ROUNDING = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 2.0**-4}
"""The largest error as a share of the vector's largest magnitude: half a step, and half of the last of four bits."""


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 10_000), exponent=st.integers(-30, 30), width=st.sampled_from([1, 2, 64, 96]))
def test_a_vector_comes_back_within_the_formats_rounding(
    dtype: torch.dtype, seed: int, exponent: int, width: int
) -> None:
    vectors = torch.randn((3, width), generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    stored, scales = quantise(vectors, dtype)
    assert (stored.dtype, scales.dtype, scales.shape) == (dtype, torch.float32, (3,))
    largest = vectors.abs().amax(dim=-1, keepdim=True)
    error = (restore(stored, scales, torch.float32) - vectors).abs()
    assert bool((error <= largest * ROUNDING[dtype] * 1.001).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_magnitude_is_kept_exactly_and_zeros_stay_zeros(dtype: torch.dtype) -> None:
    vectors = torch.tensor([[3.0, -127.0, 5.0], [0.0, 0.0, 0.0], [448.0, -448.0, 0.0]])
    back = restore(*quantise(vectors, dtype), torch.float32)
    torch.testing.assert_close(back[:, 1], vectors[:, 1], rtol=1e-6, atol=0)
    assert back[1].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_vector_with_a_number_that_is_none_comes_back_as_no_number(dtype: torch.dtype, broken: float) -> None:
    back = restore(*quantise(torch.tensor([[1.0, broken, 2.0], [1.0, 1.0, 2.0]]), dtype), torch.float32)
    assert not back[0].isfinite().all()
    assert back[1].isfinite().all()
