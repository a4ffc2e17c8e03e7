"""Rotary positions: frequencies by RoPE type, and the rotation of queries and keys (Su et al., 2021).

Frequencies and angles are float32 whatever the model computes in, as in `transformers`: that is what checkpoints were
trained and published with, and a finer angle would be a different model at long positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvledger_engine.model.config import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Radians per position of each pair of dimensions, float32[head_dim // 2] on the CPU."""
    plain = 1.0 / _periods(rope, head_dim)
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "llama3":
        return _llama3(rope, plain)
    if rope.rope_type == "yarn":
        return _yarn(rope, head_dim)
    return plain


def _periods(rope: Rope, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return torch.pow(rope.theta, exponents)


def _llama3(rope: Rope, plain: Tensor) -> Tensor:
    """Long waves are stretched, short ones kept, those between mixed (Llama 3.1's `apply_scaling`)."""
    turns = rope.original_max_position_embeddings / (2 * math.pi / plain)
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * plain / rope.factor + kept * plain


def _yarn(rope: Rope, head_dim: int) -> Tensor:
    """Dimensions that turn often are kept, those that turn seldom are stretched (Peng et al., 2023, section 3.2)."""
    periods = _periods(rope, head_dim)
    low, high = (_dimension_turning(rope, turns, head_dim) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return (1 / (rope.factor * periods)) * (1 - kept) + (1 / periods) * kept


def _dimension_turning(rope: Rope, turns: float, head_dim: int) -> float:
    """The dimension pair that turns so often within the original context."""
    wavelength = rope.original_max_position_embeddings / (turns * 2 * math.pi)
    return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))


class Rotation:
    """Cosine and sine of every token's angles, made once a step for all layers: [tokens, 1, head_dim].

    The sine of a pair's first dimension is negative, so that a rotation is x × cos + (x turned by half) × sin.
    """

    def __init__(self, positions: Tensor, frequencies: Tensor, *, attention_factor: float, dtype: torch.dtype) -> None:
        angles = (positions.to(torch.float32)[:, None] * frequencies)[:, None]
        cos, sin = (wave.mul_(attention_factor) for wave in (angles.cos(), angles.sin()))
        # At least float32: a half has no room for the product, so the cast comes after the rotation.
        wide = torch.promote_types(dtype, torch.float32)
        self._cos, self._sin = torch.cat((cos, cos), dim=-1).to(wide), torch.cat((-sin, sin), dim=-1).to(wide)

    def apply(self, heads: Tensor) -> Tensor:
        """Rotate [tokens, heads, head_dim]: dimension i pairs with i + head_dim // 2, as in published checkpoints."""
        turned = heads.roll(heads.shape[-1] // 2, dims=-1)
        return torch.addcmul(heads * self._cos, turned, self._sin).to(heads.dtype)
