"""A Llama over a paged cache: embedding, layers of attention and SwiGLU, and the head. Functions of tensors, no state.

Tokens of all sequences lie flat, [tokens, hidden_size]; which of them see which slots is the attention plan's affair.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from kvledger_engine.attention.plan import AttentionPlan
from kvledger_engine.attention.reference import Gather, attend
from kvledger_engine.kvstore import KvStore
from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.rope import Rotation, inverse_frequencies
from kvledger_engine.model.weights import LayerWeights, Weights


class Llama:
    """A model over the store its keys and values go to and come from."""

    def __init__(self, config: ModelConfig, weights: Weights, store: KvStore) -> None:
        self._config, self._weights, self._store = config, weights, store
        self._gather = Gather()
        self._frequencies = inverse_frequencies(config.rope, config.head_dim).to(weights.norm.device)

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, plan: AttentionPlan) -> Tensor:
        """Compute the tokens, int64[t], and fill the cache at `slots`; returns [t, hidden_size] for `logits`."""
        hidden = embedding(tokens, self._weights.embedding)
        rotation = Rotation(
            positions, self._frequencies, attention_factor=self._config.rope.attention_factor, dtype=hidden.dtype
        )
        for index, layer in enumerate(self._weights.layers):
            hidden = hidden + self._attention(index, layer, self._norm(hidden, layer.input_norm), rotation, slots, plan)
            hidden = hidden + self._mlp(layer, self._norm(hidden, layer.mlp_norm))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token, [rows, vocab_size], from rows of `forward`."""
        return linear(self._norm(hidden, self._weights.norm), self._weights.head)

    def _norm(self, values: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(values, weight.shape, weight, self._config.rms_norm_eps)

    def _attention(
        self, index: int, layer: LayerWeights, hidden: Tensor, rotation: Rotation, slots: Tensor, plan: AttentionPlan
    ) -> Tensor:
        config = self._config
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        projected = linear(hidden, layer.qkv, layer.qkv_bias).unflatten(-1, (-1, config.head_dim))
        query, key, value = projected.split((heads, kv_heads, kv_heads), dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        # Every key of the step is stored before any query looks: a prompt's tokens see each other through the cache.
        self._store.write(index, slots, rotation.apply(key), value)
        keys, values = self._store.keys_of(index), self._store.values_of(index)
        attended = attend(rotation.apply(query), keys, values, plan, self._gather)
        return linear(attended.flatten(1), layer.output, layer.output_bias)

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate, up = linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return linear(silu(gate) * up, layer.down, layer.down_bias)
