"""Eviction policies: who is passed over, how often, and that the order stays that of a plain list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger_engine.config import EngineConfig
from kvledger_engine.errors import BadConfig
from kvledger_engine.evict import Eviction
from tests.engine.cachekit import Kit, Memory, small_limits
from tests.engine.evictkit import Order
from tests.engine.rig import Rig, expected, request

CAPACITY = 8
MEMORY = Memory(small_limits(capacity=CAPACITY))


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
    ledger = MEMORY.ledger(VirtualClock())
    order = Order(ledger, Eviction.PREFIX)
    model: list[int] = []
    lives = [0] * CAPACITY
    for move, bits in moves:
        ledger.begin()
        chosen = [block for block in range(CAPACITY) if bits >> block & 1]
        if move == "add":
            fresh = [block for block in chosen if block not in model]
            order.append(*fresh)
            model += fresh
        elif move == "use":
            used = [block for block in model if block in chosen]
            order.remove(*used)
            model = [block for block in model if block not in used]
        elif move == "live":
            for block in chosen:
                lives[block] = order.lives[block] = 1 + block % 3
        else:
            count = min(bits % 4, len(model))
            assert order.pop(count) == popped_from(model, lives, count)
            assert order.lives.tolist() == lives
        ledger.end()
        assert order.blocks() == model
        assert len(order) == len(model)
        assert len(model) <= order.span <= len(ledger.evict.ring)
        assert (ledger.blocks.evict_ticket >= 0).sum() == len(model)


def test_a_block_that_is_passed_over_is_stamped() -> None:
    ledger = MEMORY.ledger(VirtualClock())
    order = Order(ledger, Eviction.PREFIX)
    order.lives[5] = 1
    ledger.begin()
    order.append(5, 6)
    ledger.end()
    ledger.begin()
    assert order.pop(1) == [6]
    assert ledger.blocks.changed_seq[[5, 6]].tolist() == [ledger.seq, ledger.seq]


def test_uses_are_halved_with_every_turn_and_so_are_forgotten() -> None:
    for uses, wanted in ((0, 0), (1, 1), (2, 2), (3, 2), (7, 3), (15, 4), (400, 4)):
        order = Order(MEMORY.ledger(VirtualClock()), Eviction.LFU)
        for _ in range(uses):
            order.use(1)
        assert order.turns(1) == wanted, uses
        assert order.turns(1) == 0


def test_what_was_in_a_block_before_it_was_taken_has_no_say() -> None:
    kit = Kit(small_limits(capacity=1), eviction=Eviction.LFU)
    lives = kit.kv._memory.arrays.lives
    kit.start(0, [1] * 4)
    kit.ledger.begin()
    kit.kv.pool.share(np.zeros(1, np.int64))
    assert lives[0] == 1
    kit.kv.pool.release(np.zeros(1, np.int64))
    kit.ledger.end()
    kit.end(0)
    kit.start(1, [2] * 4)
    assert lives[0] == 0


def test_the_first_blocks_of_a_sequence_are_passed_over_more_often_and_anew_after_each_use() -> None:
    order = Order(MEMORY.ledger(VirtualClock()), Eviction.PREFIX)
    for block, depth in enumerate((0, 1, 3, 4, 15, 16)):
        order.fill(block, depth)
    for _ in range(2):
        for block in range(6):
            order.cache(block)
        assert [order.turns(block) for block in range(6)] == [3, 2, 2, 1, 1, 0]


def test_lru_passes_nobody_over_and_an_unknown_policy_is_refused() -> None:
    order = Order(MEMORY.ledger(VirtualClock()))
    order.use(1)
    order.fill(1, 0)
    order.cache(1)
    assert order.turns(1) == 0
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
    ledger = MEMORY.ledger(VirtualClock())
    order = Order(ledger, Eviction.PREFIX)
    for block in range(CAPACITY):
        order.fill(block, 0 if block == 2 else 20)
        order.cache(block)
    ledger.begin()
    order.append(*range(CAPACITY))
    assert order.pop(7) == [0, 1, 3, 4, 5, 6, 7]
    assert order.blocks() == [2]
