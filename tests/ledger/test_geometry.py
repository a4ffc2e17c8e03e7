"""The byte formulas give the known answers of known models, and hold for every shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.cachegroups import page_layers
from kvledger.geometry import (
    KV_FORMATS,
    BadShape,
    HeadShape,
    KvFormat,
    KvShape,
    LatentShape,
    LayerGroup,
    default_reserve_bytes,
    effective_concurrency,
    resolve_head_dim,
)

FP8 = KvFormat(element_bits=8)
SHAPES = st.builds(HeadShape, kv_heads=st.integers(1, 128), head_dim=st.integers(1, 512))
LATENTS = st.builds(LatentShape, kv_lora_rank=st.integers(1, 2048), rope_dim=st.integers(0, 256))
LENGTHS = st.integers(1, 300_000)
BLOCK_SIZES = st.sampled_from([1, 8, 16, 32, 128])


def grouped_query(
    *, layers: int, kv_heads: int, hidden_size: int, attention_heads: int, head_dim: int | None = None
) -> KvShape:
    """A model of full-attention layers, described the way model cards do."""
    dim = resolve_head_dim(hidden_size=hidden_size, attention_heads=attention_heads, head_dim=head_dim)
    return KvShape(groups=(LayerGroup(layers=layers, shape=HeadShape(kv_heads=kv_heads, head_dim=dim)),))


def context_bytes(model: KvShape, context_tokens: int, block_size_tokens: int) -> int:
    """Bytes that a context of this length holds."""
    return sum(group.tokens_held(context_tokens, block_size_tokens) * group.bytes_per_token() for group in model.groups)


LLAMA_8B = grouped_query(layers=32, kv_heads=8, hidden_size=4096, attention_heads=32)
LLAMA_70B = grouped_query(layers=80, kv_heads=8, hidden_size=8192, attention_heads=64)
QWEN2_7B = grouped_query(layers=28, kv_heads=4, hidden_size=3584, attention_heads=28)
QWEN3_32B = grouped_query(layers=64, kv_heads=8, hidden_size=5120, attention_heads=64, head_dim=128)
GEMMA_9B_FULL = grouped_query(layers=42, kv_heads=8, hidden_size=3584, attention_heads=16, head_dim=256)
DEEPSEEK_V3 = KvShape(groups=(LayerGroup(layers=61, shape=LatentShape(kv_lora_rank=512, rope_dim=64)),))
GEMMA_HEADS = HeadShape(kv_heads=8, head_dim=256)
GEMMA_9B = KvShape(
    groups=(
        LayerGroup(layers=21, shape=GEMMA_HEADS),
        LayerGroup(layers=21, shape=GEMMA_HEADS, window_tokens=4096),
    )
)


@pytest.mark.parametrize(
    ("model", "expected_bytes"),
    [
        pytest.param(LLAMA_8B, 131_072, id="Llama-3.1-8B"),
        pytest.param(LLAMA_70B, 327_680, id="Llama-3.1-70B"),
        pytest.param(QWEN2_7B, 57_344, id="Qwen2.5-7B"),
        pytest.param(QWEN3_32B, 262_144, id="Qwen3-32B"),
        pytest.param(DEEPSEEK_V3, 70_272, id="DeepSeek-V3"),
        pytest.param(GEMMA_9B_FULL, 344_064, id="Gemma-2-9B-all-full"),
        pytest.param(GEMMA_9B, 344_064, id="Gemma-2-9B-windows-not-filled"),
    ],
)
def test_known_models_take_their_known_bytes_per_token(model: KvShape, expected_bytes: int) -> None:
    assert model.bytes_per_token() == expected_bytes


@pytest.mark.parametrize("block_size_tokens", [1, 16, 64])
def test_windows_lower_gemma_2_9b_to_258_048_bytes_per_token_at_8k(block_size_tokens: int) -> None:
    assert context_bytes(GEMMA_9B, 8192, block_size_tokens) == 8192 * 258_048


def test_an_explicit_head_dim_wins_over_hidden_size_over_heads() -> None:
    assert resolve_head_dim(hidden_size=5120, attention_heads=64) == 80
    assert resolve_head_dim(hidden_size=5120, attention_heads=64, head_dim=128) == 128
    assert resolve_head_dim(hidden_size=5000, attention_heads=64, head_dim=128) == 128


@pytest.mark.parametrize(
    ("tensor_parallel", "expected_bytes"), [(1, 327_680), (2, 163_840), (8, 40_960), (16, 40_960), (64, 40_960)]
)
def test_a_rank_keeps_its_share_of_heads_and_never_less_than_one(tensor_parallel: int, expected_bytes: int) -> None:
    assert LLAMA_70B.bytes_per_token(tensor_parallel) == expected_bytes


@given(shape=SHAPES, data=st.data())
def test_ranks_that_divide_the_heads_split_the_bytes_exactly(shape: HeadShape, data: st.DataObject) -> None:
    divisors = [n for n in range(1, shape.kv_heads + 1) if shape.kv_heads % n == 0]
    tensor_parallel = data.draw(st.sampled_from(divisors))
    assert shape.layer_bytes(tensor_parallel) * tensor_parallel == shape.layer_bytes()


@given(shape=SHAPES, copies=st.integers(1, 16))
def test_more_ranks_than_heads_hold_one_whole_head_each(shape: HeadShape, copies: int) -> None:
    assert shape.heads_on_rank(shape.kv_heads * copies) == 1
    assert shape.layer_bytes(shape.kv_heads * copies) == 2 * shape.head_dim * 2


@given(shape=LATENTS, tensor_parallel=st.integers(1, 128))
def test_latent_attention_is_replicated_on_every_rank(shape: LatentShape, tensor_parallel: int) -> None:
    assert shape.layer_bytes(tensor_parallel) == shape.layer_bytes() == 2 * (shape.kv_lora_rank + shape.rope_dim)


def test_scales_are_added_to_quantised_elements() -> None:
    per_head = KvFormat(element_bits=8, scale_bytes=4)
    assert HeadShape(kv_heads=8, head_dim=128, format=FP8).layer_bytes() == 2 * 8 * 128
    assert HeadShape(kv_heads=8, head_dim=128, format=per_head).layer_bytes() == 2 * 8 * (128 + 4)
    grouped = KvFormat(element_bits=4, scale_bytes=2, scale_group_elements=32)
    assert HeadShape(kv_heads=8, head_dim=128, format=grouped).layer_bytes() == 2 * 8 * (64 + 4 * 2)


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [("fp32", 262_144), ("bf16", 131_072), ("fp16", 131_072), ("int8", 67_584), ("fp8", 67_584), ("fp64", 524_288)],
)
def test_llama_8b_takes_its_bytes_in_every_format_of_the_engine(name: str, bytes_per_token: int) -> None:
    heads = HeadShape(kv_heads=8, head_dim=128, format=KV_FORMATS[name])
    assert LayerGroup(layers=32, shape=heads).bytes_per_token() == bytes_per_token


def test_a_scale_of_every_vector_costs_a_thirty_second_of_128_quantised_elements() -> None:
    bare = HeadShape(kv_heads=8, head_dim=128, format=FP8).layer_bytes()
    assert HeadShape(kv_heads=8, head_dim=128, format=KV_FORMATS["fp8"]).layer_bytes() == bare * (1 + 1 / 32)


WINDOWS = st.lists(st.sampled_from([None, 64, 4096]), min_size=1, max_size=90)


@given(windows=WINDOWS, most=st.integers(3, 16))
def test_layers_are_cut_into_groups_of_one_kind_and_one_size_full_attention_first(
    windows: list[int | None], most: int
) -> None:
    groups = page_layers(windows, most)
    assert sorted(layer for group in groups for layer in group) == list(range(len(windows)))
    assert len(groups) <= most
    kinds = [{windows[layer] for layer in group} for group in groups]
    assert all(len(kind) == 1 for kind in kinds)
    assert kinds == sorted(kinds, key=lambda kind: (None not in kind, *(window or 0 for window in kind)))
    size = max(map(len, groups))
    room = len(groups) * size - len(windows)
    counts = [windows.count(kind) for kind in set(windows)]
    fewest = min(
        sum(-(-count // other) * other for count in counts)
        for other in range(1, max(counts) + 1)
        if sum(-(-count // other) for count in counts) <= most
    )
    assert room == fewest - len(windows)


@pytest.mark.parametrize(
    ("windows", "sizes"),
    [
        pytest.param([None] * 32, [32], id="Llama-3.1-8B"),
        pytest.param([4096] * 32, [32], id="Mistral-7B-v0.1"),
        pytest.param([4096, None] * 21, [21, 21], id="Gemma-2-9B"),
        pytest.param(([512] * 5 + [None]) * 4 + [512] * 2, [2] * 13, id="Gemma-3-1B"),
        pytest.param([64] * 27 + [None], [1] + [3] * 9, id="a layer that is alone"),
    ],
)
def test_known_models_have_their_groups(windows: list[int | None], sizes: list[int]) -> None:
    assert [len(group) for group in page_layers(windows, 16)] == sizes


def test_more_kinds_of_layer_than_groups_are_refused() -> None:
    with pytest.raises(BadShape, match="use 1 to 2 kinds of layer"):
        page_layers([None, 1, 2], 2)


def test_a_latent_vector_may_be_quantised_without_its_rotary_part() -> None:
    """656 bytes: 512 of fp8, four float32 scales, and 64 rotary elements in bf16."""
    scaled = KvFormat(element_bits=8, scale_bytes=4, scale_group_elements=128)
    shape = LatentShape(kv_lora_rank=512, rope_dim=64, format=scaled, rope_element_bits=16)
    assert shape.layer_bytes() == 656


@given(elements=st.integers(1, 1024), bits=st.integers(1, 32))
def test_a_vector_takes_whole_bytes_and_no_more_than_it_must(elements: int, bits: int) -> None:
    assert KvFormat(element_bits=bits).vector_bytes(elements) == math.ceil(elements * bits / 8)


@given(context=LENGTHS, window=LENGTHS, block=BLOCK_SIZES)
def test_a_window_holds_whole_blocks_that_cover_it_and_at_most_one_more_at_each_end(
    context: int, window: int, block: int
) -> None:
    held = LayerGroup(layers=1, shape=GEMMA_HEADS, window_tokens=window).tokens_held(context, block)
    needed = min(context, window)
    assert held % block == 0
    assert needed <= held < needed + 2 * block
    first, last = context - needed, context - 1
    assert held == block * len(range(first // block, last // block + 1))


@given(context=LENGTHS, window=LENGTHS, block=BLOCK_SIZES)
def test_windows_never_cost_more_than_full_attention_and_nothing_until_filled(
    context: int, window: int, block: int
) -> None:
    full = KvShape(groups=(LayerGroup(layers=4, shape=GEMMA_HEADS),))
    windowed = KvShape(groups=(LayerGroup(layers=4, shape=GEMMA_HEADS, window_tokens=window),))
    ours = context_bytes(windowed, context, block)
    theirs = context_bytes(full, context, block)
    assert ours <= theirs
    if context <= window:
        assert ours == theirs


def test_a_block_is_its_tokens_over_the_layers_of_its_group() -> None:
    assert LLAMA_8B.groups[0].block_bytes(16) == 16 * 131_072
    assert LLAMA_8B.groups[0].block_bytes(16, tensor_parallel=4) == 4 * 131_072


def test_concurrency_is_what_the_reserve_leaves_over_bytes_per_request() -> None:
    gib = 1 << 30
    fit = effective_concurrency(
        budget_bytes=80 * gib, reserve_bytes=20 * gib, bytes_per_token=131_072, context_tokens=8192
    )
    assert fit == 60.0


@given(budget=st.integers(2, 1 << 48), context=LENGTHS)
def test_the_default_reserve_is_never_zero_and_lowers_concurrency(budget: int, context: int) -> None:
    assert budget / 10 <= default_reserve_bytes(budget) < budget / 10 + 1
    assumed = effective_concurrency(budget_bytes=budget, bytes_per_token=2, context_tokens=context)
    without = effective_concurrency(budget_bytes=budget, bytes_per_token=2, context_tokens=context, reserve_bytes=0)
    assert 0 < assumed < without


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: HeadShape(kv_heads=0, head_dim=128), r"kv_heads=0: give a whole number of at least 1"),
        (lambda: HeadShape(kv_heads=8, head_dim=-1), r"head_dim=-1"),
        (lambda: HeadShape(kv_heads=8, head_dim=64.0), r"head_dim=64\.0"),  # type: ignore[arg-type]
        (lambda: HeadShape(kv_heads=True, head_dim=64), r"kv_heads=True"),
        (lambda: HeadShape(kv_heads=8, head_dim=64).layer_bytes(3), r"tensor_parallel=3 with kv_heads=8"),
        (lambda: HeadShape(kv_heads=8, head_dim=64).layer_bytes(12), r"tensor_parallel=12 with kv_heads=8"),
        (lambda: LatentShape(kv_lora_rank=512, rope_dim=64).layer_bytes(0), r"tensor_parallel=0"),
        (lambda: LatentShape(kv_lora_rank=512, rope_dim=-64), r"rope_dim=-64"),
        (lambda: KvFormat(element_bits=0), r"element_bits=0"),
        (lambda: KvFormat(scale_group_elements=32), r"scale_group_elements=32 without scales"),
        (lambda: LayerGroup(layers=0, shape=GEMMA_HEADS), r"layers=0"),
        (lambda: LayerGroup(layers=1, shape=GEMMA_HEADS, window_tokens=0), r"window_tokens=0"),
        (lambda: KvShape(groups=()), r"at least one group"),
        (lambda: LLAMA_8B.groups[0].tokens_held(-1), r"context_tokens=-1"),
        (lambda: resolve_head_dim(hidden_size=5000, attention_heads=64), r"state head_dim explicitly"),
        (lambda: default_reserve_bytes(0), r"budget_bytes=0"),
        (
            lambda: effective_concurrency(budget_bytes=10, bytes_per_token=1, context_tokens=1, reserve_bytes=10),
            r"reserve_bytes=10 of budget_bytes=10: nothing is left",
        ),
        (
            lambda: effective_concurrency(budget_bytes=10, bytes_per_token=math.nan, context_tokens=1),
            r"bytes_per_token=nan",
        ),
        (lambda: effective_concurrency(budget_bytes=1, bytes_per_token=1, context_tokens=1), r"nothing is left"),
    ],
)
def test_an_impossible_shape_is_refused_with_its_value_and_the_remedy(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(BadShape, match=message):
        build()
