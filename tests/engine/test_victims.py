"""The choice of victims, as pure functions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kvledger.views import F64, I64
from kvledger.words import RequestClass
from kvledger_engine.victims import (
    GIVES_WAY,
    PRIORITY,
    Candidates,
    Tenants,
    fewest,
    levels,
    may_give_way,
    order_of_sacrifice,
    spare,
)

CLASSES = st.sampled_from(list(RequestClass))
MEMBERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=9)
"""(level, blocks) of those who might give way."""


@given(st.lists(st.tuples(CLASSES, st.integers(1, 1 << 63)), unique_by=lambda x: x[1]))
def test_the_lowest_priority_goes_first_and_among_equals_the_latest_arrival(
    running: list[tuple[RequestClass, int]],
) -> None:
    classes = np.array([kind for kind, _ in running], np.uint8)
    serials = np.array([serial for _, serial in running], np.uint64)
    order = order_of_sacrifice(classes, serials).tolist()
    assert order == sorted(range(len(running)), key=lambda i: (PRIORITY[classes[i]], -int(serials[i])))


@given(st.lists(st.tuples(CLASSES, st.integers(-2, 2), st.integers(1, 99)), unique_by=lambda x: x[2]), st.randoms())
def test_the_order_depends_on_who_runs_and_not_on_how_they_are_listed(
    running: list[tuple[RequestClass, int, int]], random: object
) -> None:
    def ordered(members: list[tuple[RequestClass, int, int]]) -> list[tuple[RequestClass, int, int]]:
        classes, priorities = np.array([m[0] for m in members], np.uint8), np.array([m[1] for m in members], float)
        order = order_of_sacrifice(classes, np.array([m[2] for m in members], np.uint64), priorities)
        assert (np.diff(levels(classes, priorities)[order]) >= 0).all(), "the levels go up along the order"
        return [members[i] for i in order.tolist()]

    shuffled = running.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ordered(shuffled) == ordered(running)


def test_interactive_requests_outlast_default_ones_and_those_outlast_batch() -> None:
    classes = np.array([RequestClass.INTERACTIVE, RequestClass.BATCH, RequestClass.DEFAULT], np.uint8)
    assert order_of_sacrifice(classes, np.array([1, 2, 3], np.uint64)).tolist() == [1, 2, 0]


# -- who may ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(CLASSES, st.integers(0, 3), st.integers(0, 3)), max_size=12),
    st.lists(
        st.tuples(st.integers(-1, 1), st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)), min_size=4, max_size=4
    ),
    st.integers(0, 3),
    CLASSES,
)
def test_nobody_of_as_high_a_class_gives_way_and_no_tenant_within_its_reservation_to_another(
    running: list[tuple[RequestClass, int, int]],
    tenants: list[tuple[int, int, int, int]],
    column: int,
    kind: RequestClass,
) -> None:
    priority, position, held, reserved = np.array(tenants, float).T
    candidates = Candidates(
        request_class=np.array([m[0] for m in running], np.uint8),
        tenant=np.array([m[1] for m in running], np.int16),
        preemptions=np.array([m[2] for m in running], np.uint16),
    )
    may = may_give_way(
        candidates,
        Tenants(priority=priority, position=position, held=held, reserved=reserved),
        column=column,
        kind=kind,
    )
    for (its_class, its, preempted), chosen in zip(running, may.tolist(), strict=True):
        rank = (priority[its], -position[its])
        allowed = its == column or (held[its] > reserved[its] and rank < (priority[column], -position[column]))
        assert chosen == (PRIORITY[its_class] < PRIORITY[kind] and preempted < GIVES_WAY and allowed)


# -- who does ---------------------------------------------------------------------------------------------------------


def arrays(members: list[tuple[int, int]]) -> tuple[F64, F64]:
    """Levels and gains, in an order of sacrifice."""
    found = np.array(sorted(members, key=lambda member: member[0]), float).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def chosen_of(level: F64, gains: F64, needed: int) -> list[int]:
    return [int(victim) for victim in fewest(level, gains, lambda some: float(gains[some].sum()) >= needed)]


@given(MEMBERS, st.integers(1, 20))
def test_as_few_as_can_be_give_way_none_in_vain_and_none_where_all_are_not_enough(
    members: list[tuple[int, int]], needed: int
) -> None:
    level, gains = arrays(members)
    chosen = chosen_of(level, gains, needed)
    if gains.sum() < needed:
        assert chosen == []
        return
    assert gains[chosen].sum() >= needed
    for victim in chosen:
        assert gains[chosen].sum() - gains[victim] < needed, "it gave way in vain"
    eligible = np.flatnonzero(level <= level[chosen].max())
    enough = [some for some in combinations(eligible.tolist(), len(chosen) - 1) if gains[list(some)].sum() >= needed]
    assert not enough, f"{chosen} where {enough[0]} do"


@given(MEMBERS, st.integers(1, 20))
def test_nobody_of_a_higher_class_gives_way_where_those_below_are_enough(
    members: list[tuple[int, int]], needed: int
) -> None:
    level, gains = arrays(members)
    assume(gains.sum())
    needed = min(needed, int(gains.sum()))
    chosen = chosen_of(level, gains, needed)
    assert gains[level < level[chosen].max()].sum() < needed


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=9), st.integers(1, 6))
def test_of_several_who_would_do_alone_the_first_in_order_does(members: list[tuple[int, int]], needed: int) -> None:
    level, gains = arrays(members)
    # Somebody who does alone, and nobody below whose like do together.
    needed = min(needed, int(gains[level == level[0]].max()))
    chosen = chosen_of(level, gains, needed)
    assert len(chosen) == 1
    lowest = level[gains >= needed].min()
    assert chosen == [int(np.flatnonzero((gains >= needed) & (level <= max(lowest, level[chosen[0]])))[0])]


@given(MEMBERS, st.integers(1, 20), st.integers(0, 8))
@example([(0, 1), (0, 1), (0, 2)], 1, 1)
def test_nobody_is_in_vain_where_being_enough_is_more_than_a_sum(
    members: list[tuple[int, int]], needed: int, must: int
) -> None:
    """One of them has to be among the victims, or they have to be two, whatever they gain."""
    level, gains = arrays(members)

    def suffices(some: I64) -> bool:
        return bool(gains[some].sum() >= needed and (must in some or len(some) >= 2))

    chosen = fewest(level, gains, suffices)
    assert suffices(chosen) == bool(len(chosen)) == suffices(np.arange(len(level)))
    for victim in chosen.tolist():
        assert not suffices(chosen[chosen != victim])
    assert chosen.tolist() == sorted(chosen.tolist())


def test_whoever_would_stay_longest_is_spared_first() -> None:
    assert spare(np.array([0, 1, 2]), lambda some: len(some) >= 2).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("members", "needed", "chosen"),
    [
        ([(0, 1), (0, 7)], 2, [1]),  # the small one alone is not enough, the large one is
        ([(0, 3), (1, 5)], 4, [1]),  # nor is all of the lower class: one of the next is enough alone
        ([(0, 3), (0, 3), (1, 9)], 6, [0, 1]),
        ([(0, 2), (0, 3), (0, 9)], 2, [0]),
        ([(0, 2), (0, 3)], 6, []),
        ([], 1, []),
    ],
)
def test_known_choices(members: list[tuple[int, int]], needed: int, chosen: list[int]) -> None:
    assert chosen_of(*arrays(members), needed) == chosen
