"""The contiguous baselines: the same requests, the same tokens, in runs of adjacent blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger import invariants
from kvledger.words import BlockState, ReleaseCause
from kvledger_engine.allocation import Allocation
from kvledger_engine.config import EngineConfig
from kvledger_engine.contiguous import ContiguousCache
from kvledger_engine.errors import BadConfig, NotEnoughBlocks
from kvledger_engine.messages import NewRequest
from kvledger_engine.runs import first_fit, runs_of
from tests.engine.cachekit import MAX_TOKENS, SALT, Kit, small_limits
from tests.engine.rig import Rig

BASELINES = [Allocation.RESERVE, Allocation.GROW]


def _requests(count: int) -> list[NewRequest]:
    return [
        NewRequest(request_id=f"r{i}", prompt=[(i + j) % 50 for j in range(3 + 5 * i % 17)], max_tokens=6 + 7 * i % 25)
        for i in range(count)
    ]


def _rig(allocation: Allocation, **options: Any) -> Rig:
    return Rig(prefix_caching=False, allocation=allocation.value, **options)


@pytest.mark.parametrize("allocation", BASELINES)
def test_every_way_to_place_blocks_gives_the_same_tokens(allocation: Allocation) -> None:
    outcomes = []
    for kind in (Allocation.PAGED, allocation):
        rig = _rig(kind, capacity_blocks=40, max_model_len_tokens=48)
        assert rig.submit(*_requests(24)) == []
        rig.finish()
        assert set(rig.outcome.reasons.values()) == {"length"}
        rig.check_empty()
        outcomes.append(dict(rig.outcome.tokens))
    assert outcomes[0] == outcomes[1]


def test_a_reservation_is_held_whole_from_admission_to_the_end() -> None:
    rig = _rig(Allocation.RESERVE, capacity_blocks=40, max_model_len_tokens=48)
    assert rig.submit(NewRequest(request_id="short", prompt=[1, 2], max_tokens=9)) == []
    rig.step()
    assert rig.cache.held_blocks(int(rig.running[0])) == 12
    assert rig.submit(*_requests(6)) == []
    rig.step()
    # Three runs of 12 of 40 blocks: the fourth request waits, though 4 blocks are free and one would do.
    assert len(rig.running) == 3
    rig.finish()
    rig.check_empty()


def test_a_run_that_cannot_grow_in_place_is_copied_to_a_larger_one() -> None:
    rig = _rig(Allocation.GROW, capacity_blocks=60, max_model_len_tokens=64)
    requests = [NewRequest(request_id=f"r{i}", prompt=[i] * 6, max_tokens=50) for i in range(3)]
    assert rig.submit(*requests) == []
    rig.finish()
    cache = rig.cache
    assert isinstance(cache, ContiguousCache)
    assert cache.moves > 0
    assert cache.moved_blocks > 0
    assert rig.count("cow_copies_total") == 0
    rig.check_empty()


def test_room_in_pieces_is_no_room_for_a_run() -> None:
    rig = _rig(Allocation.GROW, capacity_blocks=16, max_num_seqs=8, max_model_len_tokens=64)
    requests = [NewRequest(request_id=f"r{i}", prompt=[i] * 7, max_tokens=1 + 30 * (i % 2)) for i in range(5)]
    assert rig.submit(*requests, NewRequest(request_id="long", prompt=[9] * 36, max_tokens=2)) == []
    rig.finish()
    assert set(rig.outcome.reasons.values()) == {"length"}
    cache = rig.cache
    assert isinstance(cache, ContiguousCache)
    assert cache.fragmented > 0
    rig.check_empty()


def test_a_request_that_is_alone_and_lies_badly_begins_anew_and_ends_well() -> None:
    rig = _rig(Allocation.GROW, capacity_blocks=16, max_model_len_tokens=64)
    first = NewRequest(request_id="first", prompt=[1] * 6, max_tokens=4)
    assert rig.submit(first, NewRequest(request_id="long", prompt=[2] * 14, max_tokens=48)) == []
    rig.finish()
    assert set(rig.outcome.reasons.values()) == {"length"}
    assert len(rig.outcome.tokens["long", 0]) == 48
    rig.check_empty()


@pytest.mark.parametrize("allocation", BASELINES)
@given(
    moves=st.lists(st.tuples(st.sampled_from(("admit", "grow", "grow", "end")), st.integers(0, 5), st.integers(1, 20))),
    capacity=st.integers(16, 40),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_done_each_request_has_one_run_and_the_ledger_agrees(
    allocation: Allocation, moves: list[tuple[str, int, int]], capacity: int
) -> None:
    kit = Kit(replace(small_limits(capacity=capacity, caching=False, pins=64), max_model_len_tokens=MAX_TOKENS))
    cache = ContiguousCache(kit.ledger, allocation)
    live: dict[int, int] = {}
    salts = np.full(kit.ledger.limits.max_requests, SALT, np.uint64)
    for move, slot, number in moves:
        kit.clock.advance(1_000_000_000)
        kit.ledger.begin()
        if move == "admit" and slot not in live:
            kit.seat(slot)
            if cache.admit(slot, kit.tokens[slot, :number], SALT, number) is None:
                kit.unseat(slot)
            else:
                live[slot] = number
                cache.commit(np.array([slot]), np.array([number]), kit.tokens, salts)
        elif move == "grow" and slot in live and live[slot] + number < MAX_TOKENS:
            at, after = np.array([slot]), np.array([live[slot] + number])
            if cache.fits(at, after):
                cache.grow(at, after)
                sources, targets = cache.take_copies()
                assert not np.isin(targets, sources).any()
                cache.copies_done()
                cache.commit(at, after, kit.tokens, salts)
                live[slot] += number
            else:
                with pytest.raises(NotEnoughBlocks):
                    cache.grow(at, after)
        elif move == "end" and slot in live:
            cache.release(slot, cause=ReleaseCause.FINISH)
            kit.unseat(slot)
            del live[slot]
        kit.ledger.end()
        for held in live:
            blocks = cache.blocks_of(held)
            assert len(blocks) * 4 >= live[held]
            assert (np.diff(blocks) == 1).all()
        audit = kit.reader.audit()
        assert invariants.suspects(audit) == []
        assert audit.damage == []
        assert int((kit.blocks.state == BlockState.FREE).sum()) == cache.pool.free_blocks


@given(free=st.lists(st.booleans(), min_size=1, max_size=30), count=st.integers(1, 8))
def test_the_first_run_that_is_long_enough_is_found(free: list[bool], count: int) -> None:
    expected = next((at for at in range(len(free) - count + 1) if all(free[at : at + count])), None)
    assert first_fit(np.array(free), count) == expected
    assert int(runs_of(np.array(free))[1].sum()) == sum(free)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"allocation": "buddy"}, "use one of paged, reserve, grow"),
        ({"allocation": "grow"}, "runs cannot be shared: use prefix_caching=False"),
        (
            {"allocation": "reserve", "prefix_caching": False, "capacity_blocks": 8},
            "capacity_blocks=8: a run is max_model_len: use at least 256",
        ),
        (
            {"allocation": "grow", "prefix_caching": False, "kv_eviction": "sliding", "kv_window_tokens": 9},
            "runs lose no block",
        ),
        (
            {"allocation": "grow", "prefix_caching": False, "preemption": "swap", "swap_blocks": 9},
            "runs are not swapped: use preemption='recompute'",
        ),
    ],
)
def test_what_a_baseline_cannot_do_is_refused_at_the_start(options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadConfig, match=why):
        EngineConfig(**options)


def test_several_sequences_of_one_prompt_are_refused_by_a_baseline() -> None:
    (refused,) = _rig(Allocation.GROW).submit(NewRequest(request_id="two", prompt=[1], max_tokens=2, n=2))
    assert refused.reason == "bad_request"
    assert "one by one" in refused.advice
