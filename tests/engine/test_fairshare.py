"""Positions: what each tenant has had for its weight, and where those who come begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvledger.clock import VirtualClock
from kvledger.writer import Ledger
from kvledger_engine.budgets import Budgets
from kvledger_engine.config import EngineConfig
from kvledger_engine.fairshare import FairShare
from kvledger_engine.quotafile import parse_quotas


class Shares:
    """Positions of tenants a, b and c over a ledger whose counters are set by hand."""

    def __init__(self, had: tuple[float, float, float] = (0, 0, 0), **tenants: dict[str, Any]) -> None:
        rows = {name: tenants.get(name, {}) for name in "abc"}
        config = EngineConfig(quotas=parse_quotas({"tenants": rows}))
        self.ledger = Ledger.in_memory(config.limits(), clock=VirtualClock())
        budgets = Budgets(config, parse_quotas({"tenants": rows}), self.ledger)
        self.counter = self.ledger.stats.tenant_counter("block_seconds_total")
        self.counter[:3] = had
        self.fair = FairShare(self.ledger, budgets)
        self.held = np.zeros(len(self.counter))

    def look(self, who: str) -> None:
        active = np.zeros(len(self.counter), bool)
        active[["abc".index(name) for name in who]] = True
        self.fair.look(active, self.held)

    @property
    def positions(self) -> list[float]:
        return [float(position) for position in self.fair.positions(self.held)[:3]]


def test_a_position_is_what_was_had_over_the_weight() -> None:
    shares = Shares(b={"weight": 4})
    shares.look("ab")
    shares.counter[:2] += 8
    assert shares.positions[:2] == [8, 2]


def test_what_was_had_before_this_start_counts_for_nobody() -> None:
    assert Shares((100, 3, 0), a={"weight": 2}).positions == [0, 0, 0]


def test_who_comes_begins_at_the_lowest_position_of_those_who_stayed() -> None:
    shares = Shares()
    shares.look("ab")
    shares.counter[:2] += (10, 6)
    shares.look("abc")
    assert shares.positions == [10, 6, 6]


def test_who_comes_back_into_an_idle_engine_begins_where_the_last_one_was() -> None:
    shares = Shares()
    shares.look("ab")
    shares.counter[:2] += (10, 2)
    shares.look("a")
    shares.counter[0] += 5
    shares.look("")
    shares.look("b")
    assert shares.positions == [15, 15, 0]


def test_who_has_had_more_than_the_others_does_not_lose_that_by_going_away() -> None:
    shares = Shares()
    shares.look("ab")
    shares.counter[:2] += (10, 2)
    shares.look("b")
    shares.look("ab")
    assert shares.positions[:2] == [10, 2]


def test_those_of_another_priority_are_no_measure() -> None:
    shares = Shares(a={"priority": 1}, b={"priority": 1})
    shares.look("ac")
    shares.counter[0] += 10
    shares.look("abc")
    assert shares.positions == [10, 10, 0]


def test_what_is_held_counts_for_as_long_as_requests_hold_it() -> None:
    shares = Shares(b={"weight": 2})
    shares.held[:2] = 6
    assert shares.positions[:2] == [0, 0], "nobody has ended yet"
    shares.fair.ended(np.array([0.5]))
    assert shares.positions[:2] == [3, 1.5]
    shares.fair.ended(np.full(1000, 2.0))
    assert shares.positions[0] == pytest.approx(12)
