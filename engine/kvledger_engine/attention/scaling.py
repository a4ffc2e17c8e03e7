"""Quantised vectors in plain torch: one float32 scale for each vector, its largest magnitude over the format's largest.

So nothing is clipped, no scale has to be known beforehand, and a token's cells never depend on its neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST: dict[torch.dtype, float] = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest number of each quantised dtype that is used: symmetric for int8."""


def quantise(vectors: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`vectors` [..., head_dim] as `dtype`, one of `LARGEST`, and float32 scales [...].

    A vector of zeros has scale 0. One with a number that is none, or infinite, has such a scale over zeros.
    """
    largest, exact = LARGEST[dtype], vectors.float()
    scales = exact.abs().amax(dim=-1) / largest
    sound = ((scales > 0) & scales.isfinite())[..., None]
    scaled = torch.where(sound, exact, 0.0) / torch.where(sound, scales[..., None], 1.0)
    if not dtype.is_floating_point:
        scaled = torch.floor(scaled + 0.5)
    return scaled.clamp_(-largest, largest).to(dtype), scales


def restore(stored: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Vectors in `dtype` again: what is stored times its scale, multiplied in float32."""
    return (stored.float() * scales[..., None]).to(dtype)
