"""Hugging Face's config.json as a ModelConfig. Refuses whatever this engine would compute wrongly; imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvledger.geometry import BadShape, resolve_head_dim
from kvledger_engine.model.config import ROPE_TYPES, ModelConfig, Rope
from kvledger_engine.model.embedded import EMBEDDED_MODELS
from kvledger_engine.model.errors import BadCheckpoint

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
_MISTRAL_WINDOW = 4096
_BY_LENGTH = ("dynamic", "longrope", "su")
_FULL, _SLIDING = "full_attention", "sliding_attention"
_LAYER_KINDS = (_FULL, _SLIDING)
_MISSING: Any = object()


def model_config(source: str) -> ModelConfig:
    """The configuration of `source`: an embedded model, or a checkpoint's directory. Raises `BadCheckpoint`."""
    return EMBEDDED_MODELS.get(source) or read_config(Path(source))


def read_config(directory: Path) -> ModelConfig:
    """The configuration in a checkpoint's directory; generation_config.json, if there, says what ends a sequence."""
    values = read_json(directory / "config.json")
    generation = directory / "generation_config.json"
    if generation.exists():
        ends = read_json(generation).get("eos_token_id")
        if ends is not None:
            values = {**values, "eos_token_id": ends}
    return parse_config(values)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises `BadCheckpoint` if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadCheckpoint(f"{path}: {error}: give the directory of a Hugging Face checkpoint") from error
    if not isinstance(values, dict):
        raise BadCheckpoint(f"{path}: a JSON object is expected, there is a {type(values).__name__}")
    return values


def parse_config(values: Mapping[str, Any]) -> ModelConfig:
    """A ModelConfig from the keys of config.json. Raises `BadCheckpoint` for what this engine cannot compute."""
    model_type = _get(values, "model_type", str)
    if model_type not in MODEL_TYPES:
        raise BadCheckpoint(f"model_type={model_type!r}: this engine computes {', '.join(MODEL_TYPES)}")
    _refuse_unsupported(values)
    heads = _get(values, "num_attention_heads", int)
    # Only Llama lets this key be missing for one KV head per query head; Qwen's default is a number of its own.
    kv_heads = _get(values, "num_key_value_heads", int, heads if model_type == "llama" else _MISSING)
    biased = _get(values, "attention_bias", bool, False) if model_type != "qwen2" else False
    return ModelConfig(
        vocab_size=_get(values, "vocab_size", int),
        hidden_size=_get(values, "hidden_size", int),
        intermediate_size=_get(values, "intermediate_size", int),
        num_hidden_layers=_get(values, "num_hidden_layers", int),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=_head_dim(values, model_type, heads),
        max_position_embeddings=_get(values, "max_position_embeddings", int),
        rms_norm_eps=_get(values, "rms_norm_eps", float),
        rope=_rope(values),
        qkv_bias=biased or model_type == "qwen2",
        output_bias=biased,
        mlp_bias=model_type == "llama" and _get(values, "mlp_bias", bool, False),
        qk_norm=model_type == "qwen3",
        tie_word_embeddings=_get(values, "tie_word_embeddings", bool, False),
        eos_token_ids=_ends(values),
        dtype=_get(values, "dtype", str, None) or _get(values, "torch_dtype", str, None),
        layer_windows=_layer_windows(values, model_type),
    )


def _get(values: Mapping[str, Any], key: str, kind: type, default: Any = _MISSING) -> Any:
    """`values[key]`, which must be of `kind`; the default where it is missing or null. An int will do for a float."""
    value = values.get(key)
    if value is None:
        if default is _MISSING:
            raise BadCheckpoint(f"{key} is missing: add it to config.json, as the model's authors publish it")
        return default
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise BadCheckpoint(f"{key}={value!r}: it must be of type {kind.__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadCheckpoint(f"{key}={value!r}: it must be finite")
    return value


def _refuse_unsupported(values: Mapping[str, Any]) -> None:
    if values.get("quantization_config") is not None:
        raise BadCheckpoint("quantization_config is set: use the checkpoint that is not quantised")
    activation = _get(values, "hidden_act", str, "silu")
    if activation != "silu":
        raise BadCheckpoint(f"hidden_act={activation!r}: this engine computes silu")


def _layer_windows(values: Mapping[str, Any], model_type: str) -> tuple[int | None, ...]:
    """The window of each layer, () = none has one. As `transformers` rules: `layer_types` decides where it is given."""
    layers, kinds = _get(values, "num_hidden_layers", int), values.get("layer_types")
    if kinds is None:
        kinds = _default_kinds(values, model_type, layers)
    if not isinstance(kinds, list) or (unknown := set(map(str, kinds)) - set(_LAYER_KINDS)):
        named = kinds if not isinstance(kinds, list) else sorted(unknown)[0]
        raise BadCheckpoint(f"layer_types={named!r}: this engine computes lists of {' and '.join(_LAYER_KINDS)}")
    if _SLIDING not in kinds:
        return ()
    if model_type == "llama":
        raise BadCheckpoint(
            f"layer_types has {_SLIDING!r}: a Llama has no windows; name the model_type it was made for"
        )
    window = _get(values, "sliding_window", int, _MISTRAL_WINDOW if model_type == "mistral" else _MISSING)
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _default_kinds(values: Mapping[str, Any], model_type: str, layers: int) -> list[str]:
    """What kind each layer is of where config.json has no `layer_types`."""
    first = layers
    if model_type == "mistral":
        # All layers have the window, and the key's absence means its default: only null means none.
        first = layers if values.get("sliding_window", _MISTRAL_WINDOW) is None else 0
    elif _get(values, "use_sliding_window", bool, False) and values.get("sliding_window") is not None:
        first = min(layers, _get(values, "max_window_layers", int, 0))
    return [_FULL] * first + [_SLIDING] * (layers - first)


def _head_dim(values: Mapping[str, Any], model_type: str, heads: int) -> int:
    explicit = _get(values, "head_dim", int, _MISSING if model_type == "qwen3" else None)
    try:
        return resolve_head_dim(hidden_size=_get(values, "hidden_size", int), attention_heads=heads, head_dim=explicit)
    except BadShape as error:
        raise BadCheckpoint(str(error)) from error


def _ends(values: Mapping[str, Any]) -> tuple[int, ...]:
    ends = values.get("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    for token in ends:
        if not isinstance(token, int) or isinstance(token, bool):
            raise BadCheckpoint(f"eos_token_id={token!r}: it must be a token id or a list of them")
    return tuple(ends)


def _rope(values: Mapping[str, Any]) -> Rope:
    """RoPE from `rope_theta` and `rope_scaling`, or from `rope_parameters`, which holds both since transformers 5."""
    form = values.get("rope_scaling") or values.get("rope_parameters") or {}
    if not isinstance(form, Mapping) or any(isinstance(value, Mapping) for value in form.values()):
        raise BadCheckpoint(f"rope_parameters={form!r}: one mapping for all layers is expected")
    rope_type = _get(form, "rope_type", str, None) or _get(form, "type", str, "default")
    if rope_type in _BY_LENGTH:
        raise BadCheckpoint(
            f"rope_type={rope_type!r}: its angles depend on the longest sequence of a batch, so cached keys cannot be "
            f"shared or kept; use one of {', '.join(ROPE_TYPES)}"
        )
    partial = _get(form, "partial_rotary_factor", float, _get(values, "partial_rotary_factor", float, 1.0))
    if partial != 1:
        raise BadCheckpoint(f"partial_rotary_factor={partial}: this engine rotates whole heads")
    theta = float(_get(form, "rope_theta", float, _get(values, "rope_theta", float, 10_000.0)))
    if rope_type in ("linear", "llama3", "yarn"):
        return _scaled_rope(values, form, rope_type, theta)
    return Rope(rope_type=rope_type, theta=theta)


def _scaled_rope(values: Mapping[str, Any], form: Mapping[str, Any], rope_type: str, theta: float) -> Rope:
    longest = _get(values, "max_position_embeddings", int)
    key = "original_max_position_embeddings"
    original = _get(values, key, int, _get(form, key, int, longest))
    if rope_type == "linear":
        return Rope(rope_type=rope_type, theta=theta, factor=float(_get(form, "factor", float)))
    if rope_type == "llama3":
        return Rope(
            rope_type=rope_type,
            theta=theta,
            factor=float(_get(form, "factor", float)),
            low_freq_factor=float(_get(form, "low_freq_factor", float)),
            high_freq_factor=float(_get(form, "high_freq_factor", float)),
            original_max_position_embeddings=original,
        )
    factor = float(_get(form, "factor", float, longest / original))
    return Rope(
        rope_type=rope_type,
        theta=theta,
        factor=factor,
        original_max_position_embeddings=original,
        beta_fast=float(_get(form, "beta_fast", float, 32.0)),
        beta_slow=float(_get(form, "beta_slow", float, 1.0)),
        truncate=_get(form, "truncate", bool, True),
        attention_factor=_attention_factor(form, factor),
    )


def _attention_factor(form: Mapping[str, Any], factor: float) -> float:
    """YaRN's scale of cosine and sine: stated, a ratio of two `mscale`s, or 0.1 ln(factor) + 1 (Peng et al., 2023)."""
    stated = _get(form, "attention_factor", float, None)
    if stated is not None:
        return float(stated)
    scales = [_get(form, key, float, 0.0) for key in ("mscale", "mscale_all_dim")]
    if all(scales):
        return _mscale(factor, scales[0]) / _mscale(factor, scales[1])
    return _mscale(factor, 1.0)


def _mscale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
