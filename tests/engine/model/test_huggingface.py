"""config.json as a ModelConfig: both forms of RoPE, what ends a sequence, and refusals that name value and remedy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvledger_engine.model.config import ModelConfig, Rope
from kvledger_engine.model.embedded import EMBEDDED
from kvledger_engine.model.errors import BadCheckpoint
from kvledger_engine.model.huggingface import model_config, parse_config, read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "eos_token_id": [128_001, 128_008],
    "torch_dtype": "bfloat16",
}
QWEN3 = LLAMA | {"model_type": "qwen3", "head_dim": 128}
SCALING: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN: dict[str, Any] = {"factor": 4.0, "original_max_position_embeddings": 32_768}


def test_a_published_llama_is_read_as_it_is() -> None:
    config = parse_config(LLAMA | {"rope_scaling": {"rope_type": "llama3", **SCALING}})
    assert (config.head_dim, config.num_key_value_heads, config.dtype) == (128, 8, "bfloat16")
    assert config.eos_token_ids == (128_001, 128_008)
    assert config.rope == Rope(rope_type="llama3", theta=500_000.0, **SCALING)
    assert config.bytes_per_token("bfloat16") == 131_072
    assert [config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm] == [False] * 4
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("model_type", "more", "expected"),
    [
        ("llama", {"attention_bias": True}, (True, True, False, False)),
        ("llama", {"mlp_bias": True}, (False, False, True, False)),
        ("qwen2", {}, (True, False, False, False)),
        ("qwen3", {}, (False, False, False, True)),
        ("qwen3", {"attention_bias": True}, (True, True, False, True)),
    ],
)
def test_each_type_has_its_biases_and_norms(
    model_type: str, more: dict[str, Any], expected: tuple[bool, bool, bool, bool]
) -> None:
    config = parse_config(QWEN3 | {"model_type": model_type} | more)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == expected


@pytest.mark.parametrize("scaling", [{"rope_type": "llama3", **SCALING}, {"type": "yarn", **YARN}, None])
def test_both_forms_of_rope_are_one(scaling: dict[str, Any] | None) -> None:
    old = LLAMA | {"rope_scaling": scaling}
    new = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    new["rope_parameters"] = {"rope_theta": 500_000.0, "rope_type": "default"} | (scaling or {})
    if scaling and "type" in scaling:
        new["rope_parameters"]["rope_type"] = scaling["type"]
    assert parse_config(old).rope == parse_config(new).rope
    assert parse_config(old).rope.theta == 500_000.0


def test_yarn_sharpens_attention_by_its_factor_unless_told_otherwise() -> None:
    def factor(**more: float) -> float:
        return parse_config(LLAMA | {"rope_scaling": {"type": "yarn", **YARN, **more}}).rope.attention_factor

    assert factor() == pytest.approx(1.1386294361)
    assert factor(attention_factor=1.5) == 1.5
    assert factor(mscale=1.0, mscale_all_dim=1.0) == 1.0


def test_a_config_says_nothing_about_ends_that_generation_config_says_better(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_config(tmp_path).eos_token_ids == (128_001, 128_008)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert read_config(tmp_path).eos_token_ids == (7,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    assert read_config(tmp_path).eos_token_ids == (128_001, 128_008)


def test_a_model_need_not_name_an_end() -> None:
    assert parse_config(LLAMA | {"eos_token_id": None}).eos_token_ids == ()
    assert parse_config(LLAMA | {"eos_token_id": 5}).eos_token_ids == (5,)


def test_windows_that_no_layer_uses_are_no_windows() -> None:
    unused = {"sliding_window": 4096, "use_sliding_window": False}
    assert parse_config(QWEN3 | unused) == parse_config(QWEN3)
    beyond = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 32}
    assert parse_config(QWEN3 | beyond) == parse_config(QWEN3)
    assert parse_config(QWEN3 | {"layer_types": ["full_attention"] * 32}) == parse_config(QWEN3)


def test_windows_are_of_the_layers_that_transformers_gives_them_to() -> None:
    some = {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 30}
    assert parse_config(QWEN3 | some).layer_windows == (None,) * 30 + (4096,) * 2
    types = ["sliding_attention", "full_attention"] * 16
    assert parse_config(QWEN3 | some | {"layer_types": types}).layer_windows == (4096, None) * 16
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 512}
    assert parse_config(mistral).layer_windows == (512,) * 32
    assert parse_config(mistral | {"sliding_window": None}).layer_windows == ()
    del mistral["sliding_window"]
    assert parse_config(mistral).layer_windows == (4096,) * 32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "model_type='mixtral': this engine computes llama, mistral, qwen2, qwen3"),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps=inf"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps=0.0: it must be above 0"),
        ({"vocab_size": "32000"}, "vocab_size='32000': it must be of type int"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True: it must be of type int"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0: it must be 1 or more"),
        ({"num_key_value_heads": 5}, "must be a multiple of num_key_value_heads=5"),
        ({"hidden_size": 4097}, "state head_dim explicitly"),
        ({"head_dim": 127}, "head_dim=127: rotary positions need an even one"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': this engine computes silu"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is set"),
        ({"torch_dtype": "int8"}, "dtype='int8'"),
        ({"eos_token_id": "</s>"}, "eos_token_id='</s>'"),
        ({"eos_token_id": [1, 128_256]}, "eos_token_id=128256: it lies outside the vocabulary"),
        ({"rope_theta": 0.5}, "rope_theta=0.5: it must be above 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "depend on the longest sequence of a batch"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_type='longrope'"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "rope_type='mrope': this engine computes default, linear"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope factor=0.0: it must be above 0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": {"rope_type": "llama3", **SCALING, "high_freq_factor": 1.0}}, "high_freq_factor=1.0"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "one mapping for all layers"),
        ({"model_type": "qwen3"}, "head_dim is missing"),
        ({"model_type": "qwen2", "num_key_value_heads": None}, "num_key_value_heads is missing"),
        ({"layer_types": ["sliding_attention"] * 32}, "a Llama has no windows"),
        ({"use_sliding_window": True, "sliding_window": 4096}, "a Llama has no windows"),
        ({"layer_types": ["chunked_attention"] * 32}, "layer_types='chunked_attention': this engine computes"),
        ({"layer_types": "sliding_attention"}, "layer_types='sliding_attention': this engine computes lists of"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 32}, "sliding_window is missing"),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 31, "sliding_window": 64},
            "31 layer_types for num_hidden_layers=32",
        ),
        (
            {"model_type": "qwen2", "layer_types": ["sliding_attention"] * 32, "sliding_window": 0},
            "sliding_window=0: it must be 1 or more",
        ),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadCheckpoint) as caught:
        parse_config(LLAMA | changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [None, "{", "[]", b"\xff\xfe{"])
def test_a_directory_without_a_readable_config_is_refused_by_path(content: str | bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadCheckpoint, match=r"config\.json: "):
        model_config(str(tmp_path))


def test_bytes_of_any_model_are_planned_without_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    code = (
        "import sys; from kvledger_engine.model.huggingface import model_config; "
        "print([model_config(name).bytes_per_token('float16') for name in sys.argv[1:]], 'torch' in sys.modules)"
    )
    paths = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "embedded", str(tmp_path)], capture_output=True, text=True, env=paths, check=True
    )
    assert done.stdout.strip() == f"[{EMBEDDED.bytes_per_token('float16')}, 131072] False"


def test_auto_is_what_the_checkpoint_was_saved_in_but_single_precision_on_a_cpu() -> None:
    saved: ModelConfig = parse_config(LLAMA)
    assert (saved.dtype_on(accelerator=True), saved.dtype_on(accelerator=False)) == ("bfloat16", "float32")
    silent = parse_config(LLAMA | {"torch_dtype": None})
    assert silent.dtype_on(accelerator=True) == "float32"
    assert parse_config(LLAMA | {"dtype": "float16"}).dtype == "float16"
