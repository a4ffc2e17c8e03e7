"""Rotary positions: the frequencies of published models are those of `transformers`, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kvledger_engine.model.config import Rope
from kvledger_engine.model.huggingface import parse_config
from kvledger_engine.model.rope import Rotation, inverse_frequencies
from tests.engine.model.oracle import Oracle

LLAMA_3_1 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
FORMS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 500_000.0},
    {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.5},
    {"rope_type": "llama3", "rope_theta": 500_000.0, **LLAMA_3_1},
    {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 4.0, "original_max_position_embeddings": 32_768},
    {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 40.0, "beta_fast": 8, "mscale": 0.7, "mscale_all_dim": 1.0}
    | {"original_max_position_embeddings": 4096},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form['rope_type']}-{form['rope_theta']:.0f}")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_frequencies_and_their_scale_are_those_of_transformers(
    form: dict[str, Any], head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = Oracle("llama", monkeypatch, head_dim=head_dim, max_position_embeddings=131_072, rope_parameters=form)
    theirs = oracle.model.model.rotary_emb
    rope = parse_config(oracle.config.to_dict()).rope
    assert torch.equal(inverse_frequencies(rope, head_dim), theirs.inv_freq)
    assert rope.attention_factor == pytest.approx(theirs.attention_scaling, abs=1e-15)


def test_a_rotation_keeps_lengths_and_only_the_distance_of_positions_counts() -> None:
    positions, frequencies = torch.tensor([3, 11, 103, 111]), inverse_frequencies(Rope(), 16)
    query, key = torch.randn(2, 1, 1, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rotation = Rotation(positions, frequencies, attention_factor=1.0, dtype=torch.float64)
    queries, keys = (rotation.apply(heads.expand(4, 1, 16)) for heads in (query, key))
    assert queries.norm(dim=-1).allclose(query.norm(), atol=1e-6)
    near, far = (queries[later, 0] @ keys[earlier, 0] for earlier, later in ((0, 1), (2, 3)))
    assert near.item() == pytest.approx(far.item(), abs=1e-5)


def test_a_half_is_rotated_in_single_precision() -> None:
    heads = torch.randn(50, 2, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    positions, frequencies = torch.arange(50), inverse_frequencies(Rope(), 16)
    half, whole = (
        Rotation(positions, frequencies, attention_factor=1.0, dtype=dtype) for dtype in (torch.bfloat16, torch.float32)
    )
    assert half.apply(heads).dtype == torch.bfloat16
    assert torch.equal(half.apply(heads), whole.apply(heads.float()).bfloat16())
