"""A model that is made to forget: its shape with the windows that a retention gives every layer. Imports no torch."""

from __future__ import annotations

from dataclasses import replace

from kvledger_engine.errors import BadConfig
from kvledger_engine.kveviction import Retention
from kvledger_engine.model.config import ModelConfig


def forgetful(shape: ModelConfig, retention: Retention, block_size_tokens: int) -> ModelConfig:
    """The model as it is computed. Raises `BadConfig` where a layer has a window of its own."""
    if not retention.evicts:
        return shape
    if any(shape.windows):
        raise BadConfig(
            f"kv_eviction={retention.kind!r}: the model has layers with windows of their own; use a model whose layers "
            "see everything, or kv_eviction='none'"
        )
    windows = (retention.window_tokens,) * shape.num_hidden_layers
    return replace(shape, layer_windows=windows, sink_tokens=(retention.sink_blocks or 0) * block_size_tokens)
