"""Bytes that a KV cache takes, and the requests that fit: the formulas, as pure functions of a model's shape.

Owns how layers, heads, latent ranks, windows, quantisation scales and tensor parallelism become bytes. It never reads
a model's configuration, a file or a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_RESERVE_RATIO = 0.1
"""Share of a budget kept back where nothing was measured: what engines leave at a memory utilisation of 0.9."""


class BadShape(ValueError):
    """A shape, budget or length that no KV cache can have. The message names the field, its value and the remedy."""


def _at_least(minimum: int, **fields: int) -> None:
    """Raise `BadShape` for the first field that is not a whole number of at least `minimum`."""
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise BadShape(f"{name}={value!r}: give a whole number of at least {minimum}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """How cached elements are stored.

    `element_bits` is 16 for bf16, 8 for fp8 or int8, 4 for int4. Quantised formats that keep scales beside the data
    set `scale_bytes` and the number of elements of one vector under one scale (None: one scale for the whole vector).
    Scales kept once per tensor or layer are no bytes per token: leave `scale_bytes` at 0.
    """

    element_bits: int = 16
    scale_bytes: int = 0
    scale_group_elements: int | None = None

    def __post_init__(self) -> None:
        _at_least(1, element_bits=self.element_bits)
        _at_least(0, scale_bytes=self.scale_bytes)
        if self.scale_group_elements is not None:
            _at_least(1, scale_group_elements=self.scale_group_elements)
        if self.scale_group_elements is not None and self.scale_bytes == 0:
            raise BadShape(f"scale_group_elements={self.scale_group_elements} without scales: set scale_bytes too")

    def vector_bytes(self, elements: int) -> int:
        """Bytes of one vector with its scales, each vector starting on a whole byte."""
        groups = 1 if self.scale_group_elements is None else -(-elements // self.scale_group_elements)
        return -(-elements * self.element_bits // 8) + groups * self.scale_bytes


BF16 = KvFormat()
SCALE_BYTES = 4
"""A float32 scale beside each vector of a quantised format: of every key and value of a token and KV head."""
KV_FORMATS: dict[str, KvFormat] = {
    "fp64": KvFormat(element_bits=64),
    "fp32": KvFormat(element_bits=32),
    "fp16": KvFormat(element_bits=16),
    "bf16": BF16,
    "int8": KvFormat(element_bits=8, scale_bytes=SCALE_BYTES),
    "fp8": KvFormat(element_bits=8, scale_bytes=SCALE_BYTES),
}
"""The formats of our engine's cache by name; `fp8` is e4m3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """Multi-head, grouped-query or multi-query attention: a key and a value vector per KV head."""

    kv_heads: int
    head_dim: int
    format: KvFormat = BF16

    def __post_init__(self) -> None:
        _at_least(1, kv_heads=self.kv_heads, head_dim=self.head_dim)

    def heads_on_rank(self, tensor_parallel: int) -> int:
        """KV heads that one rank keeps: its share, or one whole head where ranks outnumber heads."""
        _at_least(1, tensor_parallel=tensor_parallel)
        if self.kv_heads % tensor_parallel and tensor_parallel % self.kv_heads:
            raise BadShape(
                f"tensor_parallel={tensor_parallel} with kv_heads={self.kv_heads}: one must be a multiple of the other"
            )
        return max(1, self.kv_heads // tensor_parallel)

    def layer_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of one token in one layer on one rank: 2 x KV heads x head_dim x element size, plus scales."""
        return 2 * self.heads_on_rank(tensor_parallel) * self.format.vector_bytes(self.head_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentShape:
    """Multi-head latent attention: one compressed vector per token with its rotary part, replicated on every rank.

    `rope_element_bits` is for formats that quantise the latent part only; None stores both parts alike.
    """

    kv_lora_rank: int
    rope_dim: int
    format: KvFormat = BF16
    rope_element_bits: int | None = None

    def __post_init__(self) -> None:
        _at_least(1, kv_lora_rank=self.kv_lora_rank)
        _at_least(0, rope_dim=self.rope_dim)
        if self.rope_element_bits is not None:
            _at_least(1, rope_element_bits=self.rope_element_bits)

    def layer_bytes(self, tensor_parallel: int = 1) -> int:
        """Bytes of one token in one layer on one rank: (kv_lora_rank + rope_dim) x element size, plus scales."""
        _at_least(1, tensor_parallel=tensor_parallel)
        if self.rope_element_bits is None:
            return self.format.vector_bytes(self.kv_lora_rank + self.rope_dim)
        rope = KvFormat(element_bits=self.rope_element_bits).vector_bytes(self.rope_dim)
        return self.format.vector_bytes(self.kv_lora_rank) + rope


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers of one kind, which share a cache group. `window_tokens` None means full attention.

    Beside a window the first `sink_tokens` of a context are kept, whole blocks.
    """

    layers: int
    shape: HeadShape | LatentShape
    window_tokens: int | None = None
    sink_tokens: int = 0

    def __post_init__(self) -> None:
        _at_least(1, layers=self.layers)
        _at_least(0, sink_tokens=self.sink_tokens)
        if self.window_tokens is not None:
            _at_least(1, window_tokens=self.window_tokens)

    def bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """Bytes of one token over the group's layers on one rank."""
        return self.layers * self.shape.layer_bytes(tensor_parallel)

    def block_bytes(self, block_size_tokens: int, tensor_parallel: int = 1) -> int:
        """Bytes of one block over the group's layers on one rank."""
        _at_least(1, block_size_tokens=block_size_tokens)
        return block_size_tokens * self.bytes_per_token(tensor_parallel)

    def tokens_held(self, context_tokens: int, block_size_tokens: int = 1) -> int:
        """Token slots a context takes in this group: the sinks, and whole blocks from the window's first token on."""
        _at_least(0, context_tokens=context_tokens)
        _at_least(1, block_size_tokens=block_size_tokens)
        outside = 0 if self.window_tokens is None else max(0, context_tokens - self.window_tokens)
        dropped = max(0, outside // block_size_tokens - -(-self.sink_tokens // block_size_tokens))
        return block_size_tokens * (-(-context_tokens // block_size_tokens) - dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvShape:
    """The whole model's KV cache: its layers, grouped by kind."""

    groups: tuple[LayerGroup, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise BadShape("groups=(): a KV cache has at least one group of layers")

    def bytes_per_token(self, tensor_parallel: int = 1) -> int:
        """Bytes of one token on one rank while no window has been filled: every layer counts in full."""
        return sum(group.bytes_per_token(tensor_parallel) for group in self.groups)


def resolve_head_dim(*, hidden_size: int, attention_heads: int, head_dim: int | None = None) -> int:
    """The head dimension of a model: an explicit one wins, else hidden size divided by attention heads."""
    if head_dim is not None:
        _at_least(1, head_dim=head_dim)
        return head_dim
    _at_least(1, hidden_size=hidden_size, attention_heads=attention_heads)
    if hidden_size % attention_heads:
        raise BadShape(f"hidden_size={hidden_size} over attention_heads={attention_heads}: state head_dim explicitly")
    return hidden_size // attention_heads


def default_reserve_bytes(budget_bytes: int) -> int:
    """The reserve assumed where none was measured: a tenth of the budget, rounded up, so never zero."""
    _at_least(1, budget_bytes=budget_bytes)
    return math.ceil(budget_bytes * DEFAULT_RESERVE_RATIO)


def effective_concurrency(
    *, budget_bytes: int, bytes_per_token: float, context_tokens: int, reserve_bytes: int | None = None
) -> float:
    """Requests of `context_tokens` that fit at once: (budget - reserve) / (bytes per token x context length).

    Ask with the length at a percentile, never with the mean: lengths are skewed, and a few long requests hold most of
    the pool. With windows, `bytes_per_token` is the average at this length. `reserve_bytes` None assumes
    `default_reserve_bytes`; 0 has to be said. Raises `BadShape` where the reserve leaves nothing to the cache.
    """
    _at_least(1, budget_bytes=budget_bytes, context_tokens=context_tokens)
    if not bytes_per_token > 0:
        raise BadShape(f"bytes_per_token={bytes_per_token!r}: give a number above 0")
    reserve = default_reserve_bytes(budget_bytes) if reserve_bytes is None else reserve_bytes
    _at_least(0, reserve_bytes=reserve)
    if reserve >= budget_bytes:
        raise BadShape(f"reserve_bytes={reserve:,} of budget_bytes={budget_bytes:,}: nothing is left for the cache")
    return (budget_bytes - reserve) / (bytes_per_token * context_tokens)
