"""A Llama over a paged cache: embedding, layers of attention and SwiGLU, and the head. Functions of tensors, no state.

Tokens of all sequences lie flat, [tokens, hidden_size]; which of them see which slots is the attention plan's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import embedding, silu

from kvledger_engine.kvstore import KvStore
from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.linear import linear
from kvledger_engine.model.norm import RmsNorm
from kvledger_engine.model.rope import Rotation, inverse_frequencies
from kvledger_engine.model.weights import LayerWeights, Weights


@dataclass(frozen=True, slots=True)
class GroupStep:
    """A step in one cache group: the slots its tokens go to, int64[t], and the backend's plan of what they see."""

    slots: Tensor
    plan: Any


class Llama:
    """A model over the store its keys and values go to and come from."""

    def __init__(self, config: ModelConfig, weights: Weights, store: KvStore) -> None:
        self._config, self._weights, self._store = config, weights, store
        self._group_of = [0] * config.num_hidden_layers
        for group, layers in enumerate(config.cache_groups()):
            for layer in layers:
                self._group_of[layer] = group
        self._norm = RmsNorm(config.rms_norm_eps)
        self._frequencies = inverse_frequencies(config.rope, config.head_dim).to(weights.norm.device)

    def forward(self, tokens: Tensor, positions: Tensor, groups: Sequence[GroupStep]) -> Tensor:
        """Compute the tokens, int64[t], and fill the cache of each group; returns [t, hidden_size] for `logits`."""
        hidden = embedding(tokens, self._weights.embedding)
        rotation = Rotation(
            positions, self._frequencies, attention_factor=self._config.rope.attention_factor, dtype=hidden.dtype
        )
        for index, layer in enumerate(self._weights.layers):
            step = groups[self._group_of[index]]
            hidden = hidden + self._attention(index, layer, self._norm(hidden, layer.input_norm), rotation, step)
            hidden = hidden + self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, [rows, vocab_size], from rows of `forward`."""
        return linear(self._norm(hidden, self._weights.norm), self._weights.head)

    def _attention(
        self, index: int, layer: LayerWeights, hidden: Tensor, rotation: Rotation, step: GroupStep
    ) -> Tensor:
        query, key, value = self._projected(layer, hidden, rotation)
        # Every key of the step is stored before any query looks: a prompt's tokens see each other through the cache.
        self._store.write(index, step.slots, key, value)
        attended = self._store.backend.attend(query, self._store.cells_of(index), step.plan)
        return linear(attended.flatten(1), layer.output, layer.output_bias)

    def _projected(self, layer: LayerWeights, hidden: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, rotated, and values: [t, heads, head_dim] each."""
        config = self._config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        projected = linear(hidden, layer.qkv, layer.qkv_bias).view(len(hidden), -1, config.head_dim)
        looking, value = projected.split((heads + kv_heads, kv_heads), dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = looking.split((heads, kv_heads), dim=1)
            return (
                rotation.apply(self._norm(query, layer.query_norm)),
                rotation.apply(self._norm(key, layer.key_norm)),
                value,
            )
        query, key = rotation.apply(looking).split((heads, kv_heads), dim=1)
        return query, key, value

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return linear(silu(gate).mul_(up), layer.down, layer.down_bias)
