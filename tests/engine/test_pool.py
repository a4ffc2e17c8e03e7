"""The pool: what is taken first, what a reference does, and what the clocks and counts say about it."""

from __future__ import annotations

import numpy as np
import pytest

from kvledger.words import BlockState
from kvledger_engine.errors import NotEnoughBlocks
from tests.engine.cachekit import Kit, small_limits

SECOND_NS = 1_000_000_000


def new_kit(capacity: int = 8) -> Kit:
    kit = Kit(small_limits(capacity=capacity))
    kit.ledger.begin()
    return kit


def take(kit: Kit, count: int, *, owner: int = 1, tenant: int = 0) -> list[int]:
    owners, tenants = np.full(count, owner, np.uint64), np.full(count, tenant, np.int16)
    return [int(block) for block in kit.kv.pool.take(count, owners, tenants)]


def release(kit: Kit, *blocks: int) -> None:
    kit.kv.pool.release(np.array(blocks))


def share(kit: Kit, *blocks: int) -> None:
    kit.kv.pool.share(np.array(blocks))


def counts(kit: Kit) -> tuple[int, int, int]:
    pool = kit.kv.pool
    return pool.free_blocks, pool.cached_blocks, pool.active_blocks


def cached(kit: Kit, count: int) -> None:
    """Leave `count` cached blocks behind."""
    kit.ledger.end()
    kit.start(0, [7] * (4 * count + 1))
    kit.end(0)
    kit.ledger.begin()


def test_a_taken_block_says_whose_it_is_and_holds_nothing() -> None:
    kit = new_kit()
    kit.clock.advance(5)
    kit.ledger.begin()
    block = take(kit, 1, owner=42, tenant=2)[0]
    blocks = kit.blocks
    row = (blocks.ref_count[block], blocks.state[block], blocks.owner[block], blocks.tenant[block])
    assert row == (1, BlockState.ACTIVE, 42, 2)
    assert (blocks.filled_tokens[block], blocks.allocated_ns[block]) == (0, kit.clock.now_ns())
    assert blocks.changed_seq[block] == kit.ledger.seq


def test_the_block_released_last_is_taken_first() -> None:
    kit = new_kit()
    a, b, c = take(kit, 3)
    release(kit, c, b, a)
    assert take(kit, 3) == [a, b, c]


def test_free_blocks_go_before_cached_ones_and_the_oldest_of_those_first() -> None:
    kit = new_kit(capacity=4)
    cached(kit, 3)
    assert counts(kit) == (1, 3, 0)
    order = kit.eviction_order()
    assert take(kit, 1) == [3]
    assert kit.counter("evictions_total") == 0
    assert take(kit, 2) == order[:2]
    assert kit.counter("evictions_total") == 2
    assert kit.eviction_order() == order[2:]


def test_too_many_at_once_takes_nothing_and_is_counted() -> None:
    kit = new_kit(capacity=4)
    cached(kit, 2)
    with pytest.raises(NotEnoughBlocks, match="5 blocks needed, 4 free or cached") as short:
        take(kit, 5)
    assert (short.value.needed, short.value.available) == (5, 4)
    assert counts(kit) == (2, 2, 0)
    assert kit.counter("allocation_failures_total") == 1
    assert kit.counter("evictions_total") == 0


def test_a_shared_block_stays_until_its_last_holder_lets_go() -> None:
    kit = new_kit()
    block = take(kit, 1)[0]
    share(kit, block)
    release(kit, block)
    assert counts(kit) == (7, 0, 1)
    release(kit, block)
    assert counts(kit) == (8, 0, 0)


def test_a_block_given_twice_in_one_call_loses_two_references() -> None:
    kit = new_kit()
    a, b = take(kit, 2)
    share(kit, a, a)
    release(kit, a, b, a)
    assert kit.blocks.ref_count[[a, b]].tolist() == [1, 0]
    release(kit, a)
    assert counts(kit) == (8, 0, 0)


def test_a_block_given_twice_is_free_from_its_last_reference_on() -> None:
    kit = new_kit()
    a, b = take(kit, 2)
    share(kit, a)
    release(kit, a, b, a)
    assert take(kit, 2) == [a, b]


@pytest.mark.parametrize("times", [1, 2])
def test_releasing_what_nobody_holds_is_our_own_bug(times: int) -> None:
    kit = new_kit()
    block = take(kit, 1)[0]
    with pytest.raises(AssertionError, match="nobody held"):
        release(kit, *[block] * (1 + times))


def test_sharing_a_free_block_is_our_own_bug() -> None:
    kit = new_kit()
    with pytest.raises(AssertionError, match="a free block was shared"):
        share(kit, 0)


def test_the_share_clock_runs_at_one_over_the_holders_and_stands_while_nobody_holds() -> None:
    kit = new_kit()
    kit.ledger.end()
    kit.start(0, [1] * 5)
    for change, blocks in ((share, (0, 0, 0)), (release, (0, 0, 0)), (release, (0,))):
        kit.clock.advance(SECOND_NS)
        kit.ledger.begin()
        change(kit, *blocks)
        kit.ledger.end()
    assert kit.blocks.share_clock[0] == 1.0 + 0.25 + 1.0
    kit.clock.advance(SECOND_NS)
    kit.ledger.begin()
    share(kit, 0)
    assert kit.blocks.share_clock[0] == 2.25
    assert kit.blocks.share_since_ns[0] == kit.clock.now_ns()


def test_tenants_are_charged_for_their_active_blocks_and_whoever_revives_one_is() -> None:
    kit = new_kit()
    take(kit, 2, tenant=0)
    take(kit, 1, tenant=1)
    kit.ledger.end()
    kit.clock.advance(2 * SECOND_NS)
    kit.start(3, [1] * 5, tenant=1)
    assert kit.ledger.stats.tenant_blocks.tolist() == [2, 3, 0, 0]
    kit.end(3)
    assert kit.start(4, [1] * 5, tenant=2) == 4
    assert kit.ledger.stats.tenant_blocks.tolist() == [2, 1, 2, 0]
    assert kit.ledger.stats.tenant_counter("block_seconds_total").tolist() == [4, 2, 0, 0]


def test_nothing_is_taken_and_released_without_a_stamp() -> None:
    kit = new_kit()
    blocks = take(kit, 3)
    kit.ledger.end()
    seq = kit.ledger.begin()
    release(kit, *blocks[:2])
    assert kit.blocks.changed_seq[blocks].tolist() == [seq, seq, seq - 1]
