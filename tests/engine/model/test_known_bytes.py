"""The known answers of the design for bytes per token, against the bytes of tensors that were really allocated."""

from __future__ import annotations

import pytest
import torch

from kvledger.geometry import KV_FORMATS
from kvledger_engine.kvstore import KvStore
from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.device import stored_dtype

BLOCKS, SIZE = 2, 16


def model(layers: int, kv_heads: int, head_dim: int, windows: tuple[int | None, ...] = ()) -> ModelConfig:
    """A model whose cache has this shape; nothing else of it matters here."""
    return ModelConfig(
        vocab_size=8,
        hidden_size=kv_heads * head_dim,
        intermediate_size=8,
        num_hidden_layers=layers,
        num_attention_heads=kv_heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=32_768,
        rms_norm_eps=1e-6,
        layer_windows=windows,
    )


GEMMA_WINDOWS = (4096, None) * 21
KNOWN = {
    "Llama-3.1-8B": (model(32, 8, 128), 131_072),
    "Llama-3.1-70B": (model(80, 8, 128), 327_680),
    "Qwen2.5-7B": (model(28, 4, 128), 57_344),
    "Qwen3-32B": (model(64, 8, 128), 262_144),
    "Gemma-2-9B, all layers full": (model(42, 8, 256), 344_064),
}
MIXED = {
    "Gemma-2-9B, every second layer a window": model(42, 8, 256, GEMMA_WINDOWS),
    "Mistral-7B, all layers windows": model(32, 8, 128, (4096,) * 32),
    "five windows to one full layer": model(12, 2, 64, ((512,) * 5 + (None,)) * 2),
}


def stored(config: ModelConfig, kv_format: str) -> KvStore:
    cells = stored_dtype(kv_format)
    return KvStore(config, capacity_blocks=BLOCKS, block_size_tokens=SIZE, dtype=cells, device=torch.device("cpu"))


def of_bf16(known: int, kv_format: str, head_dim: int) -> int:
    """What a known answer in bf16 is in another format, by hand: a scale of 4 bytes beside each quantised vector."""
    exact = {"fp64": 4 * known, "fp32": 2 * known, "bf16": known, "fp16": known}
    return exact.get(kv_format, known // 2 * (head_dim + 4) // head_dim)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("name", KNOWN)
def test_the_tensors_of_a_known_model_take_its_known_bytes_in_every_format(name: str, kv_format: str) -> None:
    config, known = KNOWN[name]
    store = stored(config, kv_format)
    allocated = sum(plane.nbytes for plane in store.planes)
    assert allocated == BLOCKS * SIZE * of_bf16(known, kv_format, config.head_dim)
    (group,) = config.ledger_groups(kv_format, SIZE)
    assert (group.bytes_per_token, group.block_bytes) == (allocated // (BLOCKS * SIZE), allocated // BLOCKS)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize("name", MIXED)
def test_windows_and_mixed_layers_are_groups_whose_blocks_are_as_large_as_what_was_allocated(
    name: str, kv_format: str
) -> None:
    config = MIXED[name]
    store, groups = stored(config, kv_format), config.ledger_groups(kv_format, SIZE)
    allocated = sum(plane.nbytes for plane in store.planes)
    # A block belongs to one group and has room for the layers of any.
    assert {group.block_bytes for group in groups} == {allocated // BLOCKS}
    rows = store.keys.shape[0]
    layers = [len(layers) for layers in config.cache_groups()]
    assert max(layers) == rows
    by_layer = allocated // (BLOCKS * SIZE * rows)
    assert [group.bytes_per_token for group in groups] == [by_layer * count for count in layers]


def test_8k_tokens_of_gemma_2_9b_take_258_048_bytes_each_in_blocks_of_the_size_that_was_allocated() -> None:
    config = MIXED["Gemma-2-9B, every second layer a window"]
    store = stored(config, "bf16")
    block_bytes = sum(plane.nbytes for plane in store.planes) // BLOCKS
    held = sum(group.tokens_held(8192, SIZE) // SIZE for group in config.kv_shape("bf16").groups)
    assert held == 512 + 256
    assert held * block_bytes == 8192 * 258_048
