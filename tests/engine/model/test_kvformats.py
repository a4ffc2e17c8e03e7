"""A cache in fewer bits: how far scores move on a small model, within stated bounds, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kvledger_engine.attention.backend import check_card
from kvledger_engine.computes import CELL_MODEL, ModelOptions, longest_context_tokens, open_compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig, NonFiniteLogits
from kvledger_engine.model.device import stored_dtype
from kvledger_engine.runner import ModelRunner, build_runner
from tests.engine.model.batches import batch
from tests.engine.rig import Rig, request

TEXT = b"Paged caches turn memory into a ledger of blocks; every block has an owner, and every wait has a cause. " * 3
STEPS = range(60, 300)
MOVED = {"bf16": 0.02, "int8": 0.02, "fp8": 0.1}
"""The most that a score may move on average, in standard deviations of the scores."""
AGREED = {"bf16": 0.97, "int8": 0.97, "fp8": 0.9}
"""The least share of steps whose likeliest token stays the same."""


def _runner(kv_format: str, **options: Any) -> ModelRunner:
    return build_runner(
        "embedded", capacity_blocks=100, block_size_tokens=4, device="cpu", kv_format=kv_format, **options
    )


def _scores(runner: ModelRunner) -> Tensor:
    """Scores after every token of a text, decoded a token a step after a first part: [steps, vocab_size]."""
    found, tokens = [], np.frombuffer(TEXT, np.uint8).astype(np.int32)
    blocks = np.arange(100, dtype=np.int32)
    for start, end in [(0, STEPS.start), *((at, at + 1) for at in STEPS)]:
        step = batch([(start, end - start)], tokens=tokens[start:end], table_blocks=blocks[: -(-end // 4)])
        with torch.inference_mode():
            found.append(runner.logits(step)[0])
    return torch.stack(found)[:, 32:127]


@pytest.fixture(scope="module")
def exact() -> Tensor:
    return _scores(_runner("fp32"))


@pytest.mark.parametrize("kv_format", MOVED)
def test_a_smaller_format_moves_the_scores_no_further_than_its_bound(kv_format: str, exact: Tensor) -> None:
    scores = _scores(_runner(kv_format))
    moved = float((scores - exact).abs().mean() / exact.std())
    agreed = float((scores.argmax(dim=1) == exact.argmax(dim=1)).float().mean())
    assert 0 < moved <= MOVED[kv_format]
    assert agreed >= AGREED[kv_format]


def test_auto_is_the_dtype_of_the_weights() -> None:
    assert _runner("auto").kv_format == "fp32"
    assert _runner("auto", dtype="bfloat16").kv_format == "bf16"
    assert _runner("int8", dtype="bfloat16").kv_format == "int8"


@pytest.mark.parametrize("kv_format", ["fp32", "bf16", "int8", "fp8"])
@pytest.mark.parametrize("model", ["embedded", "embedded-windows"])
def test_the_ledger_has_the_bytes_that_were_allocated(model: str, kv_format: str) -> None:
    config = EngineConfig(capacity_blocks=9, max_num_seqs=4)
    opened = open_compute(config, ModelOptions(source=model, device="cpu", kv_format=kv_format))
    limits = opened.config.limits()
    assert isinstance(opened.compute, ModelRunner)
    assert {group.block_bytes * 9 for group in limits.groups} == {opened.compute.store.nbytes}
    assert limits.budget_bytes - limits.reserve_bytes == opened.compute.store.nbytes
    assert opened.config.kv_format == kv_format
    assert [group.window_tokens for group in limits.groups] == ([0] if model == "embedded" else [0, 64])


@pytest.mark.parametrize("kv_format", ["int8", "fp8"])
def test_an_engine_serves_from_a_quantised_cache_with_copies_and_shared_prefixes(kv_format: str) -> None:
    runner = _runner(kv_format)
    rig = Rig(compute=runner, capacity_blocks=100, vocab_size=512)
    rig.submit(request("a", 17, 6), request("b", 18, 6, n=3, temperature=1.0, seed=3))
    rig.step(4)
    rig.submit(request("again", [*request("a", 17).prompt, 1], 4))
    rig.finish()
    assert set(rig.outcome.reasons.values()) == {"length"}
    assert rig.count("cow_copies_total") > 0
    assert rig.count("prefix_hit_tokens_total") == 16
    rig.check_empty()


def test_a_number_that_is_none_is_told_in_whole_numbers_too() -> None:
    runner = _runner("int8")
    step = batch([(0, 9)])
    runner.execute(step)
    runner.store.scales[0][0, 0, int(step.table_blocks[0])] = torch.nan
    with pytest.raises(NonFiniteLogits):
        runner.execute(batch([(9, 1)], table_blocks=step.table_blocks))


def test_a_model_without_keys_and_values_has_no_format_of_them() -> None:
    with pytest.raises(BadConfig, match="kv_format='int8': the model 'cell' keeps no keys and values; use 'auto'"):
        longest_context_tokens(ModelOptions(source=CELL_MODEL, kv_format="int8"))


@pytest.mark.parametrize(
    ("kv_format", "capability", "instead"), [("fp8", (8, 0), "int8"), ("bf16", (7, 5), "fp32"), ("fp8", (7, 0), "int8")]
)
def test_a_format_that_a_card_cannot_do_is_refused_with_one_it_can(
    kv_format: str, capability: tuple[int, int], instead: str
) -> None:
    with pytest.raises(BadConfig, match=f"compute capability {capability[0]}.{capability[1]}.*use {instead}"):
        check_card(stored_dtype(kv_format), capability)
    check_card(stored_dtype(instead), capability)
