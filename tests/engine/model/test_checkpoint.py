"""Loading a checkpoint: one file or shards, every name and shape checked, and nothing read outside its directory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kvledger_engine.model.checkpoint import load_weights
from kvledger_engine.model.errors import BadCheckpoint
from kvledger_engine.model.huggingface import read_config
from kvledger_engine.model.weights import Weights
from tests.engine.model.oracle import Oracle

CPU = torch.device("cpu")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    return Oracle("qwen3", monkeypatch, head_dim=16, attention_bias=True)


def _load(directory: Path, dtype: torch.dtype = torch.float64) -> Weights:
    return load_weights(directory, read_config(directory), dtype=dtype, device=CPU)


def _assert_equal(one: Weights, other: Weights) -> None:
    pairs: list[tuple[Any, Any]] = [(one, other), *zip(one.layers, other.layers, strict=True)]
    for ours, theirs in pairs:
        for field in fields(ours):
            value = getattr(ours, field.name)
            if isinstance(value, Tensor):
                assert torch.equal(value, getattr(theirs, field.name)), field.name


def test_shards_are_one_model(oracle: Oracle, tmp_path: Path) -> None:
    whole, shards = oracle.save(tmp_path / "whole"), oracle.save(tmp_path / "shards", max_shard_size="100KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    _assert_equal(_load(whole), _load(shards))


def test_a_tensor_comes_as_the_dtype_asked_for(oracle: Oracle, tmp_path: Path) -> None:
    oracle.save(tmp_path)
    weights = _load(tmp_path, torch.bfloat16)
    expected = oracle.model.model.embed_tokens.weight.detach().to(torch.bfloat16)
    assert torch.equal(weights.embedding, expected)
    assert {weights.norm.dtype, weights.head.dtype, weights.layers[0].qkv.dtype} == {torch.bfloat16}
    assert weights.nbytes == 2 * sum(weight.numel() for weight in oracle.model.parameters())


def test_a_tied_head_is_the_embedding_and_a_stored_copy_of_it_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tied = Oracle("llama", monkeypatch, tie_word_embeddings=True)
    tied.save(tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    tensors["lm_head.weight"] = torch.zeros_like(tensors["model.embed_tokens.weight"])
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(6)
    save_file(tensors, tmp_path / SINGLE)
    weights = _load(tmp_path)
    assert weights.head is weights.embedding
    assert weights.nbytes == 8 * sum(weight.numel() for weight in tied.model.parameters())


def _changed(directory: Path, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = load_file(directory / SINGLE)
    change(tensors)
    save_file(tensors, directory / SINGLE)


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(NORM), r"model\.norm\.weight \(1 tensors\) missing"),
        (lambda t: t.update({"model.extra": torch.zeros(2)}), r"model\.extra is not a tensor of the model"),
        (lambda t: t.update({NORM: torch.zeros(47)}), r"has shape \(47,\): config\.json makes it \(48,\)"),
        (lambda t: t.update({NORM: torch.zeros(48, dtype=torch.int8)}), "stored as I8"),
    ],
)
def test_tensors_that_are_not_the_models_are_refused_by_name(
    change: Callable[[dict[str, Tensor]], Any], message: str, oracle: Oracle, tmp_path: Path
) -> None:
    oracle.save(tmp_path)
    _changed(tmp_path, change)
    with pytest.raises(BadCheckpoint, match=message):
        _load(tmp_path)


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/passwd", "sub/a.safetensors", "weights.bin", 5])
def test_an_index_cannot_point_out_of_its_directory(name: Any, oracle: Oracle, tmp_path: Path) -> None:
    oracle.save(tmp_path / "here", max_shard_size="100KB")
    index = tmp_path / "here" / INDEX
    content = json.loads(index.read_text())
    content["weight_map"][NORM] = name
    index.write_text(json.dumps(content))
    with pytest.raises(BadCheckpoint, match=r"must be a \.safetensors file beside the index"):
        _load(tmp_path / "here")


def test_an_index_and_its_files_must_agree(oracle: Oracle, tmp_path: Path) -> None:
    oracle.save(tmp_path, max_shard_size="100KB")
    index = tmp_path / INDEX
    content = json.loads(index.read_text())
    del content["weight_map"][NORM]
    index.write_text(json.dumps(content))
    with pytest.raises(BadCheckpoint, match="in the index or the file, but not in both"):
        _load(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, []])
def test_an_index_without_a_map_is_refused(weight_map: Any, oracle: Oracle, tmp_path: Path) -> None:
    oracle.save(tmp_path, max_shard_size="100KB")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(BadCheckpoint, match="weight_map"):
        _load(tmp_path)


def test_a_missing_shard_and_a_cut_file_are_refused_by_path(oracle: Oracle, tmp_path: Path) -> None:
    shards, single = oracle.save(tmp_path / "shards", max_shard_size="100KB"), oracle.save(tmp_path / "single")
    gone = sorted(shards.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(BadCheckpoint, match=gone.name):
        _load(shards)
    whole = (single / SINGLE).read_bytes()
    (single / SINGLE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadCheckpoint, match="fetch the file again"):
        _load(single)
    (single / SINGLE).unlink()
    with pytest.raises(BadCheckpoint, match="give a checkpoint in safetensors"):
        _load(single)
