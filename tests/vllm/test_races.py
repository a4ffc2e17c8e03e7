"""The races against vLLM do the same work on both sides: a difference would stop them, and these are not stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import vllm_trace
from bench.conversations import prompts
from bench.decoding import Decoding
from bench.errors import BenchError
from bench.replay import Replay
from bench.vllm_decode import Slots
from bench.vllm_pool import Race as PoolRace
from bench.vllm_trace import Peer
from bench.vllm_trace import Race as TraceRace
from bench.vllmtrace import RUNNING

CAPACITY, LONGEST = 400, 160


def test_both_pools_hand_out_the_same_blocks_and_end_full_of_cached_ones(ledger_directory: Path) -> None:
    race = PoolRace(ledger_directory / "pool", 1024)
    for turn in range(4):
        figures = race.round(turn)
        assert all(min(phases) > 0 for phases in figures.values())
    race.require_full_caches()
    race.theirs.take(1)
    with pytest.raises(BenchError, match="work was left out"):
        race.require_full_caches()
    race.ours.ledger.close()


def test_the_same_prompts_decode_in_the_same_numbers_of_blocks(ledger_directory: Path) -> None:
    lengths, further = [5, 16, 31, 100], 40
    asked = prompts(lengths)
    ours = Decoding(ledger_directory / "decode", asked, further_tokens=further)
    theirs = Slots(asked, capacity=ours.capacity_blocks, longest=max(lengths) + further + 2)
    for _ in range(further):
        ours.step()
        theirs.step()
        assert ours.held() == theirs.held()
    assert ours.free() == theirs.free() == ours.capacity_blocks
    ours.close()


def test_a_trace_is_found_cached_on_both_sides_alike(ledger_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_trace, "CAPACITY_BLOCKS", CAPACITY)
    random = np.random.default_rng(0)
    conversations = random.integers(0, 32_000, (200, LONGEST), dtype=np.int32)
    ours = Replay(ledger_directory / "trace", capacity_blocks=CAPACITY, running=RUNNING, longest_tokens=LONGEST)
    race = TraceRace(ours, Peer(longest=LONGEST))
    for turn in range(10):
        asked = [conversations[random.integers(200), : random.integers(1, LONGEST + 1)].copy() for _ in range(30)]
        for serial, prompt in enumerate(asked):
            prompt[-1] = 40_000 + 30 * turn + serial
        race.window(asked, ours_first=bool(turn % 2))
    assert 0 < race.hit_tokens < race.asked_tokens
    assert ours.ledger.stats.values[ours.ledger.stats.counter("evictions_total")] > 0
    assert ours.free() == race._theirs.free() == CAPACITY
    ours.close()
