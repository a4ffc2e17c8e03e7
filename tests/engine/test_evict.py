"""The eviction order against a plain list, in a ring so small that it is compacted all the time."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.writer import Ledger
from tests.engine.cachekit import Memory, small_limits
from tests.engine.evictkit import Order

CAPACITY = 8
MEMORY = Memory(small_limits(capacity=CAPACITY))


def new_order() -> tuple[Ledger, Order]:
    ledger = MEMORY.ledger(VirtualClock())
    ledger.begin()
    return ledger, Order(ledger)


def test_the_oldest_are_evicted_first_and_of_one_call_the_first() -> None:
    _, order = new_order()
    order.append(3, 1)
    order.append(2)
    assert order.pop(2) == [3, 1]
    assert order.pop(1) == [2]
    assert len(order) == 0


def test_a_block_that_comes_back_is_the_newest() -> None:
    _, order = new_order()
    order.append(0, 1, 2)
    order.remove(0)
    order.append(0)
    assert order.pop(3) == [1, 2, 0]


def test_evicted_blocks_are_stamped_and_lose_their_ticket() -> None:
    ledger, order = new_order()
    order.append(5, 6)
    order.pop(1)
    assert ledger.blocks.changed_seq[[5, 6]].tolist() == [ledger.seq, 0]
    assert ledger.blocks.evict_ticket[5] == -1


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(("add", "use", "evict")), st.integers(0, 255)), min_size=40, max_size=80))
def test_the_order_is_that_of_a_list_whatever_comes_and_goes(moves: list[tuple[str, int]]) -> None:
    ledger, order = new_order()
    model: list[int] = []
    for move, bits in moves:
        if move == "add":
            fresh = [block for block in range(CAPACITY) if bits >> block & 1 and block not in model]
            order.append(*fresh)
            model += fresh
        elif move == "use":
            used = [block for block in model if bits >> block & 1]
            order.remove(*used)
            model = [block for block in model if block not in used]
        else:
            count = min(bits % 4, len(model))
            assert order.pop(count) == model[:count]
            model = model[count:]
        assert order.blocks() == model
        assert len(order) == len(model)
        assert len(model) <= order.span <= len(ledger.evict.ring)
        assert (ledger.blocks.evict_ticket >= 0).sum() == len(model)
