"""Budgets: who may take how much, by ceilings, reservations and the watermark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.words import WaitCause
from kvledger.writer import Ledger
from kvledger_engine.budgets import Budgets, Standing
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadQuotas
from kvledger_engine.quotafile import parse_quotas

CAPACITY = 20
ROWS: dict[str, dict[str, Any]] = {
    "a": {"reserved_blocks": 6},
    "b": {"reserved_blocks": 4, "max_blocks": 9},
    "c": {"max_blocks": 5},
    "d": {},
}
RESERVED = np.array([6, 4, 0, 0])


def budgets(watermark: int = 0) -> tuple[Ledger, Budgets]:
    quotas = parse_quotas({"tenants": ROWS})
    config = EngineConfig(
        capacity_blocks=CAPACITY, admission_watermark_blocks=watermark, quotas=quotas, block_size_tokens=4
    )
    ledger = Ledger.in_memory(config.limits(), clock=VirtualClock())
    return ledger, Budgets(config, quotas, ledger)


def standing(held: tuple[int, ...], watermark: int = 0) -> Standing:
    ledger, found = budgets(watermark)
    ledger.stats.tenant_blocks[: len(held)] = held
    return found.standing(np.zeros(len(found.ceiling)), CAPACITY - sum(held))


def test_the_ledger_shows_what_each_tenant_can_hold_and_nothing_where_that_is_the_whole_pool() -> None:
    ledger, found = budgets()
    assert found.ceiling[:4].tolist() == [16, 9, 5, 10]
    assert ledger.tenants.quota_blocks[:6].tolist() == [16, 9, 5, 10, 10, 10]
    config = EngineConfig(quotas=parse_quotas({"tenants": {"x": {}}}))
    plain = Ledger.in_memory(config.limits(), clock=VirtualClock())
    Budgets(config, parse_quotas({"tenants": {"x": {}}}), plain)
    assert not plain.tenants.quota_blocks.any()


def test_a_tenant_without_a_column_of_its_own_is_refused() -> None:
    quotas = parse_quotas({"tenants": {"late": {}}})
    config = EngineConfig(quotas=quotas, max_tenants=1)
    ledger = Ledger.in_memory(config.limits(), clock=VirtualClock())
    ledger.tenant_column("early")
    with pytest.raises(BadQuotas, match="'late': all 1 tenant columns"):
        Budgets(config, quotas, ledger)


def test_what_others_have_reserved_and_do_not_hold_cannot_be_taken() -> None:
    empty = standing((0, 0, 0, 0))
    assert [empty.judge(3, blocks) for blocks in (10, 11)] == [None, WaitCause.TENANT_QUOTA]
    half = standing((3, 0, 0, 0))
    assert [half.judge(3, blocks) for blocks in (10, 11)] == [None, WaitCause.TENANT_QUOTA]
    over = standing((9, 0, 0, 0))
    assert [over.judge(3, blocks) for blocks in (7, 8)] == [None, WaitCause.POOL]
    assert over.judge(1, 9) is None


def test_the_watermark_is_kept_from_what_is_lent_while_somebody_runs_outside() -> None:
    assert standing((6, 0, 0, 0), watermark=3).judge(3, 10) is None
    outside = standing((7, 0, 0, 0), watermark=3)
    assert [outside.judge(3, blocks) for blocks in (6, 7)] == [None, WaitCause.POOL]
    assert outside.judge(1, 4) is None, "within a reservation nothing is kept back"
    assert [outside.judge(1, blocks) for blocks in (9,)] == [None]


def test_who_grows_beyond_its_ceiling_gives_way_before_anybody_else() -> None:
    ledger, found = budgets()
    ledger.stats.tenant_blocks[:4] = (6, 0, 5, 5)
    needed = np.zeros(len(found.ceiling))
    assert found.over(needed, 4) is None
    needed[2] = needed[3] = 1
    over = found.over(needed, 4)
    assert over is not None
    assert over[:4].tolist() == [False, False, True, False]
    needed[2] = 0
    over = found.over(needed, 4)
    assert over is not None, "4 can be taken, all of them reserved"
    assert over[:4].tolist() == [False, False, True, True]


@given(
    held=st.tuples(*[st.integers(0, 9)] * 4),
    column=st.integers(0, 3),
    blocks=st.integers(1, 20),
    watermark=st.integers(0, 4),
)
def test_whatever_is_allowed_leaves_every_reservation_whole(
    held: tuple[int, ...], column: int, blocks: int, watermark: int
) -> None:
    if np.maximum(held, RESERVED).sum() > CAPACITY:
        return
    look = standing(held, watermark)
    if look.is_within_reserve(column, blocks):
        assert look.judge(column, blocks) is None, "what is reserved is there at once"
    if look.judge(column, blocks) is None:
        look.take(column, blocks)
        assert look.held[column] <= look.ceiling[column]
        assert np.maximum(look.held[:4], RESERVED).sum() <= CAPACITY
        assert look.available >= np.maximum(RESERVED - look.held[:4], 0).sum()


@given(
    held=st.tuples(*[st.integers(0, 9)] * 4),
    needed=st.tuples(*[st.integers(0, 4)] * 4),
    most=st.integers(0, 20),
)
def test_the_cheap_answer_is_never_yes_where_somebody_must_give_way(
    held: tuple[int, ...], needed: tuple[int, ...], most: int
) -> None:
    ledger, found = budgets()
    if (
        np.maximum(held, RESERVED).sum() > CAPACITY
        or sum(needed) > most
        or any(n and not h for n, h in zip(needed, held, strict=True))
    ):
        return
    ledger.stats.tenant_blocks[:4] = held
    wanted = np.zeros(len(found.ceiling))
    wanted[:4] = needed
    available = CAPACITY - sum(held)
    if found.has_room_for(most, available):
        assert found.over(wanted, available) is None
