"""Row `paging`: parts of a trace are played from 0, all are served, and paging runs more than contiguous runs do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.baselines import DEFAULT, play
from bench.errors import BenchError
from bench.eviction import hit_rate
from bench.paging import from_zero
from kvledger_agent.load.traces import TraceRow
from kvledger_engine.allocation import Allocation
from kvledger_engine.evict import Eviction

SMALL = replace(DEFAULT, blocks=128, max_model_len=512)
ROWS = [
    TraceRow(at_seconds=90 + number / 100, prompt_tokens=60 + 7 * number, output_tokens=20, hash_ids=None)
    for number in range(24)
]


def test_the_same_part_gives_the_same_figures_and_paging_has_the_least_waste() -> None:
    rows = from_zero(ROWS)
    assert rows[0].at_seconds == 0
    seen = {allocation: play(allocation, rows, SMALL) for allocation in Allocation}
    assert play(Allocation.PAGED, rows, SMALL) == seen[Allocation.PAGED]
    paged, reserve, grow = (seen[allocation] for allocation in (Allocation.PAGED, Allocation.RESERVE, Allocation.GROW))
    assert paged.mean_running > grow.mean_running > reserve.mean_running
    assert paged.empty_share < grow.empty_share < reserve.empty_share
    assert reserve.peak_running == 4, "128 blocks of 16 tokens are four contexts of 512"


def test_a_trace_that_is_not_served_whole_is_no_figure() -> None:
    with pytest.raises(BenchError, match="context_too_long"):
        play(Allocation.PAGED, from_zero([replace(ROWS[0], prompt_tokens=600)]), SMALL)


def test_hit_rates_are_those_of_the_engines_own_cache() -> None:
    prompts = [np.array([1, 2, 3, number], np.int32) for number in range(10, 20)]
    for policy in Eviction:
        assert hit_rate(prompts, policy, capacity_blocks=100, running=2) == pytest.approx(27 / 40)
