"""Faults happen once, where they were planned, and stay to be found in the ledger while the engine goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvledger import invariants
from kvledger.words import FindingKind, ReleaseCause
from kvledger_engine.errors import NotEnoughBlocks
from kvledger_engine.faults import FaultKind, FaultPlan
from tests.engine.cachekit import MAX_TOKENS, Kit, small_limits
from tests.reliability.promises import promised_findings


def test_a_fault_happens_once_at_its_opportunity_and_says_where_and_when() -> None:
    plan = FaultPlan(FaultKind.LOST_DECREF, after=2, seed=4)
    calls = [plan.strikes(FaultKind.LOST_DECREF, [10, 11, 12], now) for now in range(5)]
    assert [call is not None for call in calls] == [False, False, True, False, False]
    position = calls[2]
    assert position is not None
    assert (plan.fired, plan.block, plan.fired_ns) == (True, 10 + position, 2)


def test_other_kinds_and_empty_calls_are_no_opportunity() -> None:
    plan = FaultPlan(FaultKind.LOST_DECREF, after=1)
    for _ in range(3):
        assert plan.strikes(FaultKind.DOUBLE_FREE, [1], 0) is None
        assert plan.strikes(FaultKind.LOST_DECREF, [], 0) is None
    assert plan.strikes(FaultKind.LOST_DECREF, [1], 0) is None
    assert plan.strikes(FaultKind.LOST_DECREF, [1], 0) == 0


def test_the_seed_picks_the_block() -> None:
    picks = {
        FaultPlan(FaultKind.FREE_LIST_LOSS, seed=s).strikes(FaultKind.FREE_LIST_LOSS, range(8), 0) for s in range(99)
    }
    assert picks == set(range(8))


class Storm:
    """Requests that come, compute, fork and go at random."""

    def __init__(self, seed: int, plan: FaultPlan | None) -> None:
        self.random = random.Random(seed)
        self.kit = Kit(small_limits(capacity=24, logical_blocks=80), faults=plan)
        self.live: dict[int, int] = {}

    def operation(self) -> None:
        vacant = next((slot for slot in range(6) if slot not in self.live), None)
        draw = self.random.random()
        if draw < 0.3 and vacant is not None:
            self._start(vacant)
        elif draw < 0.4 and vacant is not None and self.live:
            source = self.random.choice(sorted(self.live))
            self.kit.fork(source, vacant)
            self.live[vacant] = self.live[source]
        elif draw < 0.8 and self.live:
            self._step()
        elif self.live:
            slot = self.random.choice(sorted(self.live))
            self.kit.end(slot, self.random.choice((ReleaseCause.FINISH, ReleaseCause.API)))
            del self.live[slot]

    def _start(self, slot: int) -> None:
        length = self.random.randint(1, 14)
        tokens = [self.random.randint(0, 1)] * 4 + [self.random.randint(0, 9) for _ in range(10)]
        if self.kit.start(slot, tokens[:length]) is not None:
            self.live[slot] = length

    def _step(self) -> None:
        after = {slot: min(length + self.random.randint(1, 2), MAX_TOKENS) for slot, length in self.live.items()}
        for slot, length in after.items():
            self.kit.tokens[slot, self.live[slot] : length] = self.random.randint(0, 9)
        try:
            self.kit.step(after)
        except NotEnoughBlocks:
            self.kit.ledger.end()
        else:
            self.live = after

    def findings(self) -> set[FindingKind]:
        audit = self.kit.reader.audit(self.kit.clock.now_ns())
        return {suspect.kind for suspect in invariants.suspects(audit)}


def test_a_storm_without_a_fault_shows_nothing() -> None:
    for seed in range(6):
        storm = Storm(seed, None)
        for _ in range(100):
            storm.operation()
            assert storm.findings() == set()


@pytest.mark.parametrize("kind", [kind for kind in FaultKind if kind is not FaultKind.MISSING_COPY_ON_WRITE])
def test_a_fault_shows_from_then_on_whatever_comes_after(kind: FaultKind) -> None:
    fired = 0
    for seed in range(8):
        plan = FaultPlan(kind, after=seed % 3, seed=seed)
        storm = Storm(seed, plan)
        for _ in range(100):
            storm.operation()
            if plan.fired:
                assert storm.findings() & promised_findings()[kind.value], f"seed {seed} hides it"
        fired += plan.fired
    assert fired >= 6


def test_a_missing_copy_shows_as_long_as_both_writers_live() -> None:
    plan = FaultPlan(FaultKind.MISSING_COPY_ON_WRITE)
    kit = Kit(small_limits(capacity=40), faults=plan)
    kit.start(0, [1] * 6)
    kit.fork(0, 1)
    for tokens in range(7, 40):
        for slot in (0, 1):
            kit.tokens[slot, tokens - 1] = 10 * slot + tokens
        kit.step({0: tokens, 1: tokens})
        suspects = invariants.suspects(kit.reader.audit(kit.clock.now_ns()))
        assert {suspect.kind for suspect in suspects} == {FindingKind.SHARED_WRITE}, f"after {tokens} tokens"
        assert [(s.block, set(s.holders)) for s in suspects] == [(plan.block, {0, 1})]
    kit.end(1)
    assert invariants.suspects(kit.reader.audit(kit.clock.now_ns())) == []


def test_an_engine_drained_after_any_fault_still_serves() -> None:
    for kind in FaultKind:
        storm = Storm(3, FaultPlan(kind))
        for _ in range(150):
            storm.operation()
        for slot in list(storm.live):
            storm.kit.end(slot)
        storm.kit.tokens[0, :3] = np.array([50, 51, 52])
        assert storm.kit.start(0, [50, 51, 52]) == 0, kind
