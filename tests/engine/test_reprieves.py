"""Eviction policies: who is passed over, how often, and that the order stays that of a plain list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvledger.clock import VirtualClock
from kvledger.layout import CONTROL_INDEX
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig
from kvledger_engine.evict import EvictionOrder
from kvledger_engine.reprieves import Depths, Eviction, Reprieves, UseCounts, reprieves
from tests.engine.cachekit import Memory, small_limits
from tests.engine.rig import Rig, expected, request

CAPACITY = 8
MEMORY = Memory(small_limits(capacity=CAPACITY))


class Given(Reprieves):
    """A policy whose lives are told to it."""

    def __init__(self) -> None:
        self.lives = np.zeros(CAPACITY, np.int64)

    def has_life(self, blocks: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = self.lives[blocks] > 0
        return found

    def spend(self, blocks: NDArray[Any]) -> None:
        self.lives[blocks] -= 1


def popped_from(model: list[int], lives: list[int], count: int) -> list[int]:
    """What goes first of a plain list, which changes as the order must."""
    gone: list[int] = []
    while len(gone) < count:
        block = model.pop(0)
        if lives[block]:
            lives[block] -= 1
            model.append(block)
        else:
            gone.append(block)
    return gone


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(("add", "use", "evict", "live")), st.integers(0, 255)), min_size=40, max_size=80)
)
def test_the_order_is_that_of_a_list_in_which_blocks_with_lives_go_to_the_end(moves: list[tuple[str, int]]) -> None:
    ledger, policy = MEMORY.ledger(VirtualClock()), Given()
    order = EvictionOrder(ledger, policy)
    model: list[int] = []
    lives = [0] * CAPACITY
    for move, bits in moves:
        ledger.begin()
        chosen = [block for block in range(CAPACITY) if bits >> block & 1]
        if move == "add":
            fresh = [block for block in chosen if block not in model]
            order.append(np.array(fresh, np.intp))
            model += fresh
        elif move == "use":
            used = [block for block in model if block in chosen]
            order.remove(np.array(used, np.intp))
            model = [block for block in model if block not in used]
        elif move == "live":
            for block in chosen:
                lives[block] = policy.lives[block] = 1 + block % 3
        else:
            count = min(bits % 4, len(model))
            assert order.pop(count).tolist() == popped_from(model, lives, count)
            assert policy.lives.tolist() == lives
        ledger.end()
        assert order.blocks().tolist() == model
        assert len(order) == len(model)
        span = ledger.control[CONTROL_INDEX["evict_tail"]] - ledger.control[CONTROL_INDEX["evict_head"]]
        assert len(model) <= span <= len(ledger.evict.ring)
        assert (ledger.blocks.evict_ticket >= 0).sum() == len(model)


def test_a_block_that_is_passed_over_is_stamped() -> None:
    ledger, policy = MEMORY.ledger(VirtualClock()), Given()
    order = EvictionOrder(ledger, policy)
    policy.lives[5] = 1
    ledger.begin()
    order.append(np.array([5, 6]))
    ledger.end()
    ledger.begin()
    assert order.pop(1).tolist() == [6]
    assert ledger.blocks.changed_seq[[5, 6]].tolist() == [ledger.seq, ledger.seq]


def turns(policy: Reprieves, block: int) -> int:
    """How often a block is passed over."""
    at, count = np.array([block]), 0
    while policy.has_life(at)[0]:
        policy.spend(at)
        count += 1
    return count


def test_uses_are_halved_with_every_turn_and_so_are_forgotten() -> None:
    policy = UseCounts(CAPACITY)
    for uses, wanted in ((0, 0), (1, 1), (2, 2), (3, 2), (7, 3), (15, 4), (400, 4)):
        policy.allocated(np.array([1]))
        for _ in range(uses):
            policy.used(np.array([1]))
        assert turns(policy, 1) == wanted, uses
        assert turns(policy, 1) == 0
    policy.used(np.array([1]))
    policy.allocated(np.array([1]))
    assert turns(policy, 1) == 0, "what was in the block before has no say"


def test_the_first_blocks_of_a_sequence_are_passed_over_more_often_and_anew_after_each_use() -> None:
    policy = Depths(CAPACITY)
    policy.filled(np.arange(6), np.array([0, 1, 3, 4, 15, 16]))
    for _ in range(2):
        policy.cached(np.arange(6))
        assert [turns(policy, block) for block in range(6)] == [3, 2, 2, 1, 1, 0]


def test_lru_passes_nobody_over_and_an_unknown_policy_is_refused() -> None:
    assert reprieves(Eviction.LRU, CAPACITY) is None
    assert not Reprieves().has_life(np.arange(3)).any()
    with pytest.raises(BadConfig, match="eviction='fifo': use one of lru, lfu, prefix"):
        EngineConfig(eviction="fifo")


@pytest.mark.parametrize("eviction", list(Eviction))
def test_every_policy_serves_the_same_tokens_and_leaves_a_sound_ledger(eviction: Eviction) -> None:
    rig = Rig(eviction=eviction.value, capacity_blocks=20, max_num_seqs=3)
    requests = [request(f"r{i}", [i % 3] * 9 + [i] * 8, 6) for i in range(24)]
    rig.submit(*requests)
    while rig.loop.has_work:
        rig.step()
        rig.check()
    assert rig.outcome.tokens == expected(requests)
    assert rig.count("evictions_total") > 0
    rig.check_empty()


def kept_of_a_shared_prompt(eviction: Eviction) -> int:
    """Tokens found cached of a prompt that many shared, after a flood of prompts that nobody shares."""
    rig = Rig(eviction=eviction.value, capacity_blocks=16, max_num_seqs=1)
    shared = list(range(100, 113))
    for i in range(4):
        rig.submit(request(f"s{i}", [*shared, i], 1))
        rig.finish()
    for i in range(3):
        rig.submit(request(f"flood{i}", [i + 1] * 30, 1))
        rig.finish()
    rig.submit(request("again", [*shared, 9], 1))
    rig.finish()
    return rig.outcome.finished["again", 0].hit_tokens


def test_what_was_shared_outlives_a_flood_under_lfu_and_not_under_lru() -> None:
    assert kept_of_a_shared_prompt(Eviction.LRU) == 0
    assert kept_of_a_shared_prompt(Eviction.LFU) == 12


def test_the_beginning_of_a_sequence_outlives_what_came_after_it_was_last_used() -> None:
    ledger, policy = MEMORY.ledger(VirtualClock()), Depths(CAPACITY)
    order = EvictionOrder(ledger, policy)
    blocks = np.arange(CAPACITY)
    policy.filled(blocks, np.where(blocks == 2, 0, 20))
    policy.cached(blocks)
    ledger.begin()
    order.append(blocks)
    assert order.pop(7).tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert order.blocks().tolist() == [2]
