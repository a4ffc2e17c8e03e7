"""Outputs of the cell model: always what the tokens alone demand, and never so when a block is wrong."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.views import I32
from kvledger_engine.batch import Batch
from kvledger_engine.cells import CellModel
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.messages import NewRequest
from tests.engine.rig import Rig, expected, oracle, request

SWITCHES: dict[str, dict[str, Any]] = {
    "chunked prefill": {"max_num_batched_tokens": 9},
    "whole prefill": {"chunked_prefill": False},
    "no prefix cache": {"prefix_caching": False},
    "a small pool": {"capacity_blocks": 20},
    "a small pool without prefix cache": {"capacity_blocks": 20, "prefix_caching": False},
    "a small pool and small chunks": {"capacity_blocks": 18, "max_num_batched_tokens": 8},
    "a small pool and swap": {"capacity_blocks": 20, "preemption": "swap", "swap_blocks": 60},
    "swap into a small host pool": {"capacity_blocks": 18, "preemption": "swap", "swap_blocks": 9},
    "swap without prefix cache": {
        "capacity_blocks": 20,
        "prefix_caching": False,
        "preemption": "swap",
        "swap_blocks": 60,
        "max_num_batched_tokens": 9,
    },
    "one at a time": {"max_num_seqs": 3, "max_num_batched_tokens": 16},
}


@st.composite
def workloads(draw: st.DrawFn) -> list[NewRequest]:
    """Requests with common prefixes, forks and seeds, each small enough for the smallest pool above."""
    prefixes = [[p] * 12 for p in range(2)]
    made = []
    for number in range(draw(st.integers(1, 7))):
        own = draw(st.lists(st.integers(0, 3), min_size=1, max_size=10))
        made.append(
            NewRequest(
                request_id=f"r{number}",
                prompt=draw(st.sampled_from([[], *prefixes])) + own,
                max_tokens=draw(st.integers(1, 14)),
                n=draw(st.sampled_from([1, 1, 2, 3])),
                temperature=draw(st.sampled_from([0.0, 1.0])),
                seed=draw(st.integers(0, 3)),
                salt=draw(st.sampled_from(["", "other"])),
                request_class=draw(st.sampled_from(["default", "interactive", "batch"])),
            )
        )
    return made


def run(requests: list[NewRequest], gaps: list[int], **config: Any) -> Rig:
    """Submit one after the other with some steps between, and finish."""
    rig = Rig(**({"max_model_len_tokens": 48} | config))
    for new, gap in zip(requests, gaps, strict=True):
        assert rig.submit(new) == []
        rig.step(gap)
    rig.finish()
    return rig


@pytest.mark.parametrize("switch", SWITCHES)
@given(data=st.data())
@settings(max_examples=25)
def test_outputs_are_what_the_tokens_demand_whatever_is_shared_chunked_copied_or_preempted(
    switch: str, data: st.DataObject
) -> None:
    requests = data.draw(workloads())
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=len(requests), max_size=len(requests)))
    rig = run(requests, gaps, **SWITCHES[switch])
    assert rig.outcome.tokens == expected(requests)
    assert set(rig.outcome.reasons.values()) == {"length"}
    rig.check_empty()


def test_the_switches_really_switch_chunking_hits_copies_and_preemptions() -> None:
    prompts = [request(f"r{i}", [5] * 13 + [i], 14, n=1 + i % 2, temperature=1.0) for i in range(6)]
    seen = {}
    for name, switch in SWITCHES.items():
        rig = run(prompts, [1] * len(prompts), **switch)
        assert rig.outcome.tokens == expected(prompts)
        seen[name] = rig
    assert seen["chunked prefill"].count("prefix_hit_tokens_total") > 0
    assert seen["chunked prefill"].count("cow_copies_total") > 0
    assert seen["no prefix cache"].count("prefix_hit_tokens_total") == 0
    for name in ("a small pool", "a small pool without prefix cache", "a small pool and small chunks"):
        assert seen[name].count("preemptions_total", mode="recompute") > 0, name
        assert seen[name].count("recomputed_tokens_total") > 0, name
    assert seen["whole prefill"].count("preemptions_total", mode="recompute") == 0


def test_the_seed_counts_only_where_there_is_a_temperature() -> None:
    prompt = [1, 2, 3]
    assert oracle(prompt, 6, seed=1) == oracle(prompt, 6, seed=2)
    assert oracle(prompt, 6, seed=1, temperature=1.0) != oracle(prompt, 6, seed=2, temperature=1.0)
    rig = Rig()
    rig.submit(request("a", prompt, 6, n=3), request("b", prompt, 6, n=3, temperature=0.5, seed=4))
    tokens = rig.finish().tokens
    assert tokens["a", 0] == tokens["a", 1] == tokens["a", 2] == oracle(prompt, 6)
    assert [tokens["b", i] for i in range(3)] == [oracle(prompt, 6, seed=4 + i, temperature=0.5) for i in range(3)]
    assert tokens["b", 0] != tokens["b", 1]


# -- each of these must change an output ------------------------------------------------------------------------------


class Tampering(CellModel, ABC):
    """A cell model that is handed a damaged batch."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(capacity_blocks=64, block_size_tokens=4, vocab_size=256, **sizes)
        self.damaged = 0

    def execute(self, batch: Batch) -> I32:
        changed = self.damage(batch)
        self.damaged += changed is not batch
        return super().execute(changed)

    @abstractmethod
    def damage(self, batch: Batch) -> Batch:
        """The batch as it is handed on; the same object where there is nothing to damage."""


class WithoutCopies(Tampering):
    def damage(self, batch: Batch) -> Batch:
        if not len(batch.copy_target):
            return batch
        none = np.zeros(0, np.int32)
        return dataclasses.replace(batch, copy_source=none, copy_target=none)


class WrongTable(Tampering):
    """Once, one row's first block is taken from another row."""

    def damage(self, batch: Batch) -> Batch:
        if self.damaged or len(batch.slots) < 2 or int(batch.counts.max()) > 1:
            return batch
        tables = batch.table_blocks.copy()
        tables[batch.table_offsets[0]] = tables[batch.table_offsets[1]]
        return dataclasses.replace(batch, table_blocks=tables)


class WrongPosition(Tampering):
    """Once, a decode goes one position too far, as after an off-by-one in what was computed."""

    def damage(self, batch: Batch) -> Batch:
        if self.damaged or int(batch.counts.max()) > 1 or int(batch.starts[0]) % 4 != 1:
            return batch
        starts = batch.starts.copy()
        starts[0] += 1
        return dataclasses.replace(batch, starts=starts)


class WithoutRecompute(Tampering):
    """A preempted sequence that comes back is taken to have its content still: only its last token is computed."""

    def __init__(self) -> None:
        super().__init__()
        self._reached: dict[int, int] = {}

    def damage(self, batch: Batch) -> Batch:
        slots, ends = batch.slots.tolist(), (batch.starts + batch.counts).tolist()
        again = [i for i, slot in enumerate(slots) if int(batch.starts[i]) < self._reached.get(slot, 0)]
        self._reached |= dict(zip(slots, ends, strict=True))
        if not again:
            return batch
        starts, counts = batch.starts.copy(), batch.counts.copy()
        first = np.cumsum(batch.counts) - batch.counts
        keep = np.ones(len(batch.tokens), bool)
        for row in again:
            keep[first[row] : first[row] + counts[row] - 1] = False
            starts[row] += counts[row] - 1
            counts[row] = 1
        return dataclasses.replace(batch, starts=starts, counts=counts, tokens=batch.tokens[keep])


@pytest.mark.parametrize("compute", [WithoutCopies, WrongTable, WrongPosition, WithoutRecompute])
def test_a_missing_copy_a_wrong_table_and_a_bad_preemption_change_the_outputs(compute: type[Tampering]) -> None:
    requests = [request(f"r{i}", 9 + i, 16, n=1 + i % 2, temperature=1.0) for i in range(5)]
    model = compute()
    rig = Rig(compute=model, capacity_blocks=20, prefix_caching=False)
    rig.submit(*requests)
    rig.finish()
    assert model.damaged > 0
    assert rig.outcome.tokens != expected(requests)


def test_a_write_into_a_shared_block_without_a_copy_changes_the_outputs() -> None:
    fault = FaultPlan(FaultKind.MISSING_COPY_ON_WRITE)
    rig = Rig(fault=fault)
    new = request("a", 10, 12, n=2, temperature=1.0)
    rig.submit(new)
    rig.finish()
    assert fault.fired
    assert rig.outcome.tokens != expected([new])


def test_a_stale_prefix_entry_is_never_hit_because_content_is_compared() -> None:
    fault = FaultPlan(FaultKind.STALE_PREFIX_ENTRY)
    rig = Rig(fault=fault, capacity_blocks=12, max_model_len_tokens=40)
    prompts = [request(f"r{i}", [i] * 20, 16) for i in range(6)]
    again = [request(f"again{i}", [i] * 20, 16) for i in range(6)]
    for new in prompts + again:
        rig.submit(new)
        rig.finish()
    assert fault.fired
    assert rig.outcome.tokens == expected(prompts + again)


def test_poison_reaches_every_cell_that_nobody_may_read() -> None:
    rig = Rig()
    rig.submit(request("a", 6, 8))
    rig.step(3)
    before = rig.cells.cells.copy()
    rig.cells.poison(np.zeros(0, np.int32), np.zeros(0, np.int32))
    table = rig.ledger.arena.chunk[int(rig.ledger.slots.first_chunk[0, 0])][:2]
    kept = np.zeros_like(before, dtype=bool)
    kept[table[0]] = True
    kept[table[1], :4] = True
    stored = int(rig.ledger.slots.computed_tokens[0])
    assert stored == 8
    assert (rig.cells.cells == before)[kept].all()
    assert not (rig.cells.cells == before)[~kept].any()
