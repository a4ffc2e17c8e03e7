"""Weights: a Llama's tensors as plain dataclasses, by which names and shapes a checkpoint has them, and seeded ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from kvledger_engine.model.config import ModelConfig
from kvledger_engine.model.linear import packed


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One layer. Linear weights are [out, in] as `linear.packed` leaves them.

    `qkv` stacks query, key and value, `gate_up` gate and up.
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A whole model. `head` is `embedding` itself where a model ties them; both are [vocab_size, hidden_size].

    A `head` of its own is as `linear.packed` leaves it.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, a tied one counted once."""
        own = {id(tensor): tensor.nbytes for tensor in (self.embedding, self.norm, self.head)}
        return sum(own.values()) + sum(tensor.nbytes for layer in self.layers for tensor in _tensors(layer))


def _tensors(layer: LayerWeights) -> Iterator[Tensor]:
    values = (getattr(layer, field.name) for field in fields(layer))
    return (value for value in values if value is not None)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a checkpoint, by the name Hugging Face gives it."""
    hidden, vocabulary = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    layer = _layer_shapes(config)
    for index in range(config.num_hidden_layers):
        shapes |= {_of_layer(index, name): shape for name, shape in layer.items()}
    return shapes


def _of_layer(index: int, name: str) -> str:
    return f"model.layers.{index}.{name}"


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * head_dim, config.num_key_value_heads * head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden, config.qkv_bias),
        "self_attn.k_proj": (keys, hidden, config.qkv_bias),
        "self_attn.v_proj": (keys, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, queries, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    for name, (rows, columns, biased) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if biased:
            shapes[f"{name}.bias"] = (rows,)
    return shapes


def assemble(config: ModelConfig, tensors: dict[str, Tensor]) -> Weights:
    """The weights from tensors by name, which must be those of `weight_shapes`; `tensors` is used up."""
    embedding = tensors.pop("model.embed_tokens.weight")
    return Weights(
        embedding=embedding,
        layers=tuple(_layer(index, tensors) for index in range(config.num_hidden_layers)),
        norm=tensors.pop("model.norm.weight"),
        head=embedding if config.tie_word_embeddings else packed(tensors.pop("lm_head.weight")),
    )


def _layer(index: int, tensors: dict[str, Tensor]) -> LayerWeights:
    # Tensors are popped as they are stacked, so that a model never lies in memory twice.
    def one(name: str) -> Tensor | None:
        return tensors.pop(_of_layer(index, name), None)

    def stacked(names: tuple[str, ...], kind: str) -> Tensor | None:
        parts = [part for name in names if (part := one(f"{name}.{kind}")) is not None]
        return torch.cat(parts) if parts else None

    def needed(tensor: Tensor | None) -> Tensor:
        assert tensor is not None
        return tensor

    def product(weight: Tensor | None) -> Tensor:
        return packed(needed(weight))

    attention = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    mlp = ("mlp.gate_proj", "mlp.up_proj")
    return LayerWeights(
        input_norm=needed(one("input_layernorm.weight")),
        qkv=product(stacked(attention, "weight")),
        qkv_bias=stacked(attention, "bias"),
        query_norm=one("self_attn.q_norm.weight"),
        key_norm=one("self_attn.k_norm.weight"),
        output=product(one("self_attn.o_proj.weight")),
        output_bias=one("self_attn.o_proj.bias"),
        mlp_norm=needed(one("post_attention_layernorm.weight")),
        gate_up=product(stacked(mlp, "weight")),
        gate_up_bias=stacked(mlp, "bias"),
        down=product(one("mlp.down_proj.weight")),
        down_bias=one("mlp.down_proj.bias"),
    )


def seeded_weights(config: ModelConfig, *, seed: int, dtype: torch.dtype, device: torch.device) -> Weights:
    """Weights drawn from a seed, the same on every device: on the CPU, in float32, tensor by tensor in order of name.

    Linear layers keep the size of what they are given. The head scores printable ASCII only, widely enough that the
    most likely token changes with the context, and leaves all other tokens at 0.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    tensors = {}
    for name, shape in sorted(weight_shapes(config).items()):
        if len(shape) == 1:
            tensors[name] = torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)
        elif name == "model.embed_tokens.weight":
            tensors[name] = torch.randn(shape, generator=generator)
        else:
            tensors[name] = torch.randn(shape, generator=generator) * (_gain(name) / shape[1] ** 0.5)
    if "lm_head.weight" in tensors:
        tensors["lm_head.weight"][: ord(" ")] = 0
        tensors["lm_head.weight"][ord("~") + 1 :] = 0
    return assemble(config, {name: tensor.to(dtype).to(device) for name, tensor in tensors.items()})


def _gain(name: str) -> float:
    """How much larger than its input the output of a linear layer is."""
    return 4.0 if name == "lm_head.weight" else 1.0
