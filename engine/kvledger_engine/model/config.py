"""ModelConfig: the shape of a Llama, checked, and the bytes its cache takes. Imports no torch, reads no file."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.geometry import KV_FORMATS, BadShape, HeadShape, KvShape, LayerGroup, page_layers
from kvledger.limits import Group
from kvledger_engine.model.errors import BadCheckpoint

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
FORMAT_OF_DTYPE = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""What a cache of the weights' dtype is called among `kvledger.geometry.KV_FORMATS`."""
MOST_GROUPS = 16
"""Cache groups that a ledger has room for."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How positions become angles. Fields that a `rope_type` does not use keep their defaults.

    `attention_factor` scales cosine and sine, which is how YaRN sharpens attention.
    """

    rope_type: str = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        if self.rope_type not in ROPE_TYPES:
            raise BadCheckpoint(f"rope_type={self.rope_type!r}: this engine computes {', '.join(ROPE_TYPES)}")
        for name in ("factor", "low_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow"):
            if not getattr(self, name) > 0:
                raise BadCheckpoint(f"rope {name}={getattr(self, name)!r}: it must be above 0")
        if not self.theta > 1:
            raise BadCheckpoint(f"rope_theta={self.theta!r}: it must be above 1")
        if not self.high_freq_factor > self.low_freq_factor:
            raise BadCheckpoint(
                f"rope high_freq_factor={self.high_freq_factor!r}: it must be above "
                f"low_freq_factor={self.low_freq_factor!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama, Qwen2 or Qwen3. Sizes have the names they have in Hugging Face's config.json.

    `qkv_bias`, `output_bias` and `mlp_bias` say which projections add a bias; `qk_norm` normalises every query and key
    head. `eos_token_ids` may be empty: then only a request ends a sequence. `dtype` is what the checkpoint was saved
    in; None = it does not say. `layer_windows` is what each layer sees: the last so many positions, None = all of them;
    () = all layers see all. Beside a window they see the first `sink_tokens`, too.
    Raises `BadCheckpoint` for sizes that contradict each other.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope = Rope()
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None
    layer_windows: tuple[int | None, ...] = ()
    sink_tokens: int = 0

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise BadCheckpoint(f"{name}={getattr(self, name)!r}: it must be 1 or more")
        if self.num_attention_heads % self.num_key_value_heads:
            raise BadCheckpoint(
                f"num_attention_heads={self.num_attention_heads}: it must be a multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise BadCheckpoint(f"head_dim={self.head_dim}: rotary positions need an even one")
        if not self.rms_norm_eps > 0:
            raise BadCheckpoint(f"rms_norm_eps={self.rms_norm_eps!r}: it must be above 0")
        if self.dtype is not None and self.dtype not in DTYPE_BYTES:
            raise BadCheckpoint(f"dtype={self.dtype!r}: this engine computes in {', '.join(DTYPE_BYTES)}")
        outside = [token for token in self.eos_token_ids if not 0 <= token < self.vocab_size]
        if outside:
            raise BadCheckpoint(f"eos_token_id={outside[0]}: it lies outside the vocabulary of {self.vocab_size}")
        self._check_windows()

    def _check_windows(self) -> None:
        if self.layer_windows and len(self.layer_windows) != self.num_hidden_layers:
            raise BadCheckpoint(
                f"{len(self.layer_windows)} layer_types for num_hidden_layers={self.num_hidden_layers}: give each one"
            )
        for window in self.layer_windows:
            if window is not None and window < 1:
                raise BadCheckpoint(f"sliding_window={window}: it must be 1 or more")
        try:
            self.cache_groups()
        except BadShape as error:
            raise BadCheckpoint(str(error)) from error

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of every layer in tokens, None = it sees all."""
        return self.layer_windows or (None,) * self.num_hidden_layers

    def cache_groups(self) -> tuple[tuple[int, ...], ...]:
        """The layers of each cache group; those that see everything come first."""
        return page_layers(self.windows, MOST_GROUPS)

    def kv_shape(self, kv_format: str) -> KvShape:
        """The cache of this model in a format of `kvledger.geometry.KV_FORMATS`, or of a dtype of `DTYPE_BYTES`."""
        shape = HeadShape(
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            format=KV_FORMATS[FORMAT_OF_DTYPE.get(kv_format, kv_format)],
        )
        return KvShape(
            groups=tuple(
                LayerGroup(
                    layers=len(layers),
                    shape=shape,
                    window_tokens=self.windows[layers[0]],
                    sink_tokens=self.sink_tokens if self.windows[layers[0]] else 0,
                )
                for layers in self.cache_groups()
            )
        )

    def ledger_groups(self, kv_format: str, block_size_tokens: int) -> tuple[Group, ...]:
        """The cache groups as a ledger knows them. A block is as large in each, whether its layers fill it or not."""
        shape = self.kv_shape(kv_format)
        block_bytes = max(group.block_bytes(block_size_tokens) for group in shape.groups)
        names = [_group_name(group) for group in shape.groups]
        return tuple(
            Group(
                name=name if names.count(name) == 1 else f"{name}_{names[:index].count(name)}",
                block_size_tokens=block_size_tokens,
                block_bytes=block_bytes,
                bytes_per_token=group.bytes_per_token(),
                window_tokens=group.window_tokens or 0,
                sink_tokens=group.sink_tokens,
            )
            for index, (name, group) in enumerate(zip(names, shape.groups, strict=True))
        )

    def bytes_per_token(self, kv_format: str) -> int:
        """Cache bytes of one token over all layers, while no window is full."""
        return self.kv_shape(kv_format).bytes_per_token()

    def dtype_on(self, *, accelerator: bool) -> str:
        """The dtype that "auto" means: the checkpoint's on an accelerator; float32 on a CPU, where halves are slow."""
        return self.dtype or "float32" if accelerator else "float32"


def _group_name(group: LayerGroup) -> str:
    if not group.window_tokens:
        return "full"
    return f"{f'sink_{group.sink_tokens}_' if group.sink_tokens else ''}window_{group.window_tokens}"
