"""The engine computes what `transformers` computes: every option of a model, every way of scheduling, in float64."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from kvledger_engine.messages import NewRequest
from kvledger_engine.model.checkpoint import load_weights
from kvledger_engine.model.huggingface import read_config
from kvledger_engine.runner import ModelRunner
from kvledger_engine.sampling import draw
from tests.engine.model.oracle import VOCABULARY, Oracle
from tests.engine.model.watched import WatchedRunner
from tests.engine.rig import Rig

BLOCK = 4
PROMPT = [(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(61)]
OUTPUT = 256
ROOMY, TIGHT = 200, 81
CPU = torch.device("cpu")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 128}
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama, as many KV heads as heads": ("llama", {"num_key_value_heads": 4}),
    "llama, wide heads": ("llama", {"head_dim": 22}),
    "llama, three queries to a KV head": ("llama", {"num_attention_heads": 6, "head_dim": 8}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}}),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, yarn stated": (
        "llama",
        {"rope_parameters": YARN | {"attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False}},
    ),
    "llama, yarn with two scales": ("llama", {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}}),
    "llama, coarse norm": ("llama", {"rms_norm_eps": 0.1}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied, yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3, biased, tied": ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
}


WINDOW = 24
MIXED = {"num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": WINDOW, "head_dim": 16}
WINDOWED: dict[str, tuple[str, dict[str, Any], int]] = {
    "qwen3, every second layer a window": (
        "qwen3",
        MIXED | {"layer_types": ["full_attention", "sliding_attention"] * 2, "max_window_layers": 4},
        100,
    ),
    "mistral, all layers a window": ("mistral", {"sliding_window": WINDOW}, 40),
}
"""(model type, options, blocks in which the workload is tight)"""

Runner = TypeVar("Runner", bound=ModelRunner)


def _runner(kind: type[Runner], oracle: Oracle, directory: Path, capacity_blocks: int) -> Runner:
    oracle.save(directory)
    config = read_config(directory)
    weights = load_weights(directory, config, dtype=torch.float64, device=CPU)
    return kind(config, weights, capacity_blocks=capacity_blocks, block_size_tokens=BLOCK)


def _rig(runner: ModelRunner, capacity_blocks: int, **config: Any) -> Rig:
    rig = Rig(
        compute=runner,
        capacity_blocks=capacity_blocks,
        block_size_tokens=BLOCK,
        max_model_len_tokens=400,
        vocab_size=VOCABULARY,
        groups=runner.config.ledger_groups("fp64", BLOCK),
        **config,
    )
    if isinstance(runner, WatchedRunner):
        runner.watch(rig.ledger)
    return rig


def _check(rig: Rig, runner: WatchedRunner, oracle: Oracle, requests: list[NewRequest]) -> None:
    """Every token and every score is the oracle's, over the tokens that came before it."""
    keys = [(request, index) for request in requests for index in range(request.n)]
    serials = sorted({serial for serial, _ in runner.seen})
    for (request, index), serial in zip(keys, serials, strict=True):
        output = rig.outcome.tokens[request.request_id, index]
        assert len(output) == request.max_tokens
        logits = oracle.logits([*request.prompt, *output[:-1]])[len(request.prompt) - 1 :]
        positions = np.arange(len(request.prompt), len(request.prompt) + len(output))
        temperatures = np.full(len(output), request.temperature, np.float32)
        seeds = np.full(len(output), request.seed + index, np.uint64)
        assert draw(logits, temperatures, seeds, positions).tolist() == output
        ours = torch.stack([runner.seen[serial, int(position)] for position in positions])
        torch.testing.assert_close(ours, logits, atol=1e-9, rtol=0)
    rig.check_empty()


def _workload(*, forks: bool) -> list[NewRequest]:
    """A long greedy sequence, one with its prompt and more of its own, and others beside it, forked if asked for."""
    beside: dict[str, Any] = {"n": 3, "max_tokens": 60} if forks else {"n": 1, "max_tokens": 200}
    return [
        NewRequest(request_id="long", prompt=PROMPT, max_tokens=OUTPUT),
        NewRequest(request_id="beside", prompt=PROMPT[:30], temperature=0.8, seed=11, **beside),
        NewRequest(request_id="again", prompt=[*PROMPT, 1, 2, 3], max_tokens=20),
        NewRequest(request_id="other", prompt=PROMPT[::-1], max_tokens=40),
    ]


def _run(rig: Rig, requests: list[NewRequest]) -> None:
    assert rig.submit(*requests[:2]) == []
    rig.step(12)
    assert rig.submit(*requests[2:]) == []
    rig.finish()
    assert set(rig.outcome.reasons.values()) == {"length"}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_a_model_gives_the_tokens_and_logits_of_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_type, options = OPTIONS[name]
    oracle = Oracle(model_type, monkeypatch, **options)
    runner = _runner(WatchedRunner, oracle, tmp_path, TIGHT)
    rig = _rig(runner, TIGHT, max_num_batched_tokens=24)
    requests = _workload(forks=True)
    _run(rig, requests)
    _check(rig, runner, oracle, requests)
    assert rig.count("preemptions_total", mode="recompute") > 0
    assert rig.count("cow_copies_total") > 0
    assert rig.count("prefix_hit_tokens_total") > 0
    assert len(set(rig.outcome.tokens["long", 0])) > 20


@pytest.mark.parametrize("name", WINDOWED)
def test_layers_with_windows_give_the_tokens_and_logits_of_transformers_while_blocks_are_recycled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_type, options, capacity = WINDOWED[name]
    oracle = Oracle(model_type, monkeypatch, **options)
    runner = _runner(WatchedRunner, oracle, tmp_path, capacity)
    assert WINDOW in runner.config.layer_windows
    rig = _rig(runner, capacity, max_num_batched_tokens=24)
    requests = _workload(forks=True)
    _run(rig, requests)
    _check(rig, runner, oracle, requests)
    assert rig.count("preemptions_total", mode="recompute") > 0
    assert rig.count("cow_copies_total") > 0
    assert rig.count("prefix_hit_tokens_total") > 0
    whole = -(-(len(PROMPT) + OUTPUT) // BLOCK) * len(rig.ledger.limits.groups)
    peaks = rig.summaries()["peak_blocks"]
    assert 0 < int(peaks.max()) < 0.8 * whole


@pytest.mark.parametrize(
    ("chunked", "prefix", "forks", "tight"),
    list(product((False, True), repeat=4)),
    ids=lambda on: "on" if on else "off",
)
def test_no_way_of_scheduling_changes_a_token(
    chunked: bool, prefix: bool, forks: bool, tight: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = Oracle("qwen3", monkeypatch, head_dim=16, rope_parameters=YARN, attention_bias=True)
    capacity = TIGHT if tight else ROOMY
    runner = _runner(WatchedRunner, oracle, tmp_path, capacity)
    budget = 24 if chunked else 400
    rig = _rig(runner, capacity, max_num_batched_tokens=budget, chunked_prefill=chunked, prefix_caching=prefix)
    requests = _workload(forks=forks)
    _run(rig, requests)
    _check(rig, runner, oracle, requests)
    assert (rig.count("preemptions_total", mode="recompute") > 0) == tight
    assert (rig.count("cow_copies_total") > 0) == forks
    assert (rig.count("prefix_hit_tokens_total") > 0) == prefix
    assert runner.poisoned_slots > 0


def test_damaging_what_nobody_may_read_changes_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oracle, outputs = Oracle("qwen2", monkeypatch), []
    for kind in (ModelRunner, WatchedRunner):
        rig = _rig(_runner(kind, oracle, tmp_path, TIGHT), TIGHT, max_num_batched_tokens=24)
        _run(rig, _workload(forks=True))
        assert rig.count("cow_copies_total") > 0
        outputs.append(rig.outcome.tokens)
    assert outputs[0] == outputs[1]
