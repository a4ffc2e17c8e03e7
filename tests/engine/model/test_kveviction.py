"""KV eviction changes answers in one way only: what was forgotten is as if masked, in every layer, for every query."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvledger_engine.computes import CELL_MODEL, ModelOptions, open_compute
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig
from kvledger_engine.kveviction import Retention
from kvledger_engine.messages import NewRequest
from kvledger_engine.model.checkpoint import load_weights
from kvledger_engine.model.embedded import EMBEDDED, EMBEDDED_WINDOWS
from kvledger_engine.model.forgetful import forgetful
from kvledger_engine.model.huggingface import read_config
from tests.engine.model.oracle import VOCABULARY, Oracle
from tests.engine.model.watched import WatchedRunner
from tests.engine.rig import Rig

BLOCK, WINDOW, SINKS, CAPACITY = 4, 22, 2, 44
PROMPT = [(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(61)]
SLIDING = Retention(kind="sliding", window_tokens=WINDOW)
SINK_WINDOW = Retention(kind="sink-window", window_tokens=WINDOW, sink_blocks=SINKS)


class Masked(Oracle):
    """The oracle, each of whose queries sees the window and the sinks and nothing else."""

    def seen_by(self, retention: Retention, tokens: list[int]) -> torch.Tensor:
        at = torch.arange(len(tokens))
        query, key = at[:, None], at[None, :]
        assert retention.window_tokens is not None
        seen = (key <= query) & ((key > query - retention.window_tokens) | (key < (retention.sink_blocks or 0) * BLOCK))
        mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)[None, None]
        with torch.inference_mode():
            scores: torch.Tensor = self.model(torch.tensor([tokens]), attention_mask=mask, use_cache=False).logits[0]
        return scores


def _watched(
    retention: Retention,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    capacity_blocks: int = CAPACITY,
    **more: Any,
) -> tuple[Masked, WatchedRunner, Rig]:
    """The masking oracle, and an engine that forgets, over the same weights."""
    oracle = Masked("llama", monkeypatch)
    oracle.save(directory)
    shape = forgetful(read_config(directory), retention, BLOCK)
    runner = WatchedRunner(
        shape,
        load_weights(directory, shape, dtype=torch.float64, device=torch.device("cpu")),
        capacity_blocks=capacity_blocks,
        block_size_tokens=BLOCK,
        swap_blocks=more.get("swap_blocks", 0),
    )
    rig = Rig(
        compute=runner,
        capacity_blocks=capacity_blocks,
        block_size_tokens=BLOCK,
        max_model_len_tokens=400,
        max_num_batched_tokens=24,
        vocab_size=VOCABULARY,
        groups=shape.ledger_groups("fp64", BLOCK),
        kv_eviction=retention.kind,
        kv_window_tokens=retention.window_tokens,
        kv_sink_blocks=retention.sink_blocks,
        **more,
    )
    runner.watch(rig.ledger)
    return oracle, runner, rig


def _scores_are_masked(
    retention: Retention, oracle: Masked, runner: WatchedRunner, rig: Rig, requests: list[NewRequest]
) -> None:
    """Every score that a token of `requests`, all there were, came from is the oracle's."""
    serials = sorted({serial for serial, _ in runner.seen})
    keys = [(request, index) for request in requests for index in range(request.n)]
    for (request, index), serial in zip(keys, serials, strict=True):
        output = rig.outcome.tokens[request.request_id, index]
        expected = oracle.seen_by(retention, [*request.prompt, *output[:-1]])[len(request.prompt) - 1 :]
        ours = torch.stack([runner.seen[serial, len(request.prompt) + at] for at in range(len(output))])
        torch.testing.assert_close(ours, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("caching", [False, True], ids=["alone", "with prefix caching"])
@pytest.mark.parametrize("retention", [SLIDING, SINK_WINDOW], ids=lambda retention: retention.kind)
def test_scores_are_those_of_a_model_that_masks_exactly_what_was_forgotten(
    retention: Retention, caching: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle, runner, rig = _watched(retention, tmp_path, monkeypatch, prefix_caching=caching)
    requests = [
        NewRequest(request_id="long", prompt=PROMPT, max_tokens=120),
        NewRequest(request_id="forked", prompt=PROMPT[:30], max_tokens=60, n=2, temperature=0.8, seed=5),
        NewRequest(request_id="again", prompt=[*PROMPT, 1, 2, 3], max_tokens=20),
    ]
    assert rig.submit(*requests[:2]) == []
    rig.step(8)
    assert rig.submit(requests[2]) == []
    rig.finish()
    _scores_are_masked(retention, oracle, runner, rig, requests)
    whole = oracle.logits([*PROMPT, *rig.outcome.tokens["long", 0][:-1]])[-1]
    blurred = runner.seen[min(runner.seen)[0], len(PROMPT) + 119]
    assert (whole - blurred).abs().max() > 0.01, "nothing was forgotten: the test shows nothing"
    assert (rig.count("prefix_hit_tokens_total") > 0) == caching
    assert rig.count("cow_copies_total") > 0
    most = (SINKS + -(-(WINDOW + 24) // BLOCK) + 1) * 2
    assert 0 < int(rig.summaries()["peak_blocks"].max()) <= most
    rig.check_empty()


@pytest.mark.parametrize("caching", [False, True], ids=["alone", "with prefix caching"])
@pytest.mark.parametrize("retention", [SLIDING, SINK_WINDOW], ids=lambda retention: retention.kind)
def test_a_sequence_that_was_swapped_out_has_forgotten_as_much_when_it_is_back(
    retention: Retention, caching: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle, runner, rig = _watched(
        retention,
        tmp_path,
        monkeypatch,
        capacity_blocks=16 if retention.sink_blocks else 14,
        prefix_caching=caching,
        preemption="swap",
        swap_blocks=40,
    )
    requests = [
        NewRequest(request_id="first", prompt=PROMPT[50:54], max_tokens=90),
        NewRequest(request_id="second", prompt=PROMPT, max_tokens=60, request_class="batch"),
        NewRequest(request_id="third", prompt=PROMPT[40:50], max_tokens=70),
    ]
    assert rig.submit(*requests[:2]) == []
    rig.step(8)
    assert rig.submit(requests[2]) == []
    gaps = {0}
    while rig.loop.has_work:
        rig.step()
        rig.check()
        gaps |= {int(saved.skipped.sum()) for saved in rig.cache.swaps._saved.values()}
    assert set(rig.outcome.reasons.values()) == {"length"}
    assert max(gaps) > 0, "nobody with a gap was swapped: the test shows nothing"
    assert rig.count("preemptions_total", mode="swap") > 0
    assert rig.count("preemptions_total", mode="recompute") == rig.count("recomputed_tokens_total") == 0
    _scores_are_masked(retention, oracle, runner, rig, requests)
    assert rig.cache.swaps.used_blocks == 0
    rig.check_empty()


def test_what_is_forgotten_is_declared_where_the_engine_is_described() -> None:
    config = EngineConfig(kv_eviction="sink-window", kv_window_tokens=64, kv_sink_blocks=1, capacity_blocks=64)
    opened = open_compute(config, ModelOptions())
    limits = opened.config.limits()
    assert limits.kv_eviction == "sink-window"
    assert [(group.name, group.window_tokens, group.sink_tokens) for group in limits.groups] == [
        ("sink_16_window_64", 64, 16)
    ]
    (said,) = opened.config.declared()
    assert said == "kv eviction sink-window: sequences keep the first 16 and the last 64 tokens, answers change"
    assert EngineConfig().declared() == []
    assert EngineConfig().limits().kv_eviction == "none"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kv_eviction": "h2o"}, "use one of none, sliding, sink-window"),
        ({"kv_eviction": "sliding"}, "kv_window_tokens=None with kv_eviction='sliding': use 1 or more"),
        ({"kv_eviction": "sliding", "kv_window_tokens": 0}, "use 1 or more"),
        ({"kv_eviction": "sliding", "kv_window_tokens": 9, "kv_sink_blocks": 1}, "choose sink-window"),
        ({"kv_eviction": "sink-window", "kv_window_tokens": 9}, "kv_sink_blocks=None"),
        ({"kv_window_tokens": 9}, "choose sliding or sink-window, or leave them out"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        EngineConfig(**options)


def test_a_model_with_windows_of_its_own_is_refused_and_so_is_one_without_attention() -> None:
    with pytest.raises(BadConfig, match="layers with windows of their own"):
        forgetful(EMBEDDED_WINDOWS, SLIDING, BLOCK)
    assert forgetful(EMBEDDED, SLIDING, BLOCK) == replace(EMBEDDED, layer_windows=(WINDOW, WINDOW))
    with pytest.raises(BadConfig, match="reads all cells before it"):
        open_compute(EngineConfig(kv_eviction="sliding", kv_window_tokens=9), ModelOptions(source=CELL_MODEL))
