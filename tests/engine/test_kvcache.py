"""The cache as the scheduler uses it: admission, growth, forks, copy-on-write, release, and what it measures."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kvledger.clock import RealClock
from kvledger.limits import Group, Limits
from kvledger.words import PinKind, ReleaseCause, RequestClass
from kvledger.writer import Ledger
from kvledger_engine.copies import must_copy
from kvledger_engine.errors import ArenaFull, BadConfig, NotEnoughBlocks
from kvledger_engine.kvcache import KvCache
from tests.engine.cachekit import SALT, Kit, small_limits

SECOND_NS = 1_000_000_000


def own_from(kit: Kit, *slots: int) -> list[int]:
    return [int(kit.slots.own_from_token[slot]) for slot in slots]


def references(kit: Kit, *blocks: int) -> list[int]:
    return [int(kit.blocks.ref_count[block]) for block in blocks]


# -- admission ----------------------------------------------------------------------------------------------------


def test_a_prefix_is_shared_block_by_block_and_never_the_whole_prompt() -> None:
    kit = Kit()
    kit.start(0, [1] * 12)
    assert kit.start(1, [1] * 12) == 8
    assert kit.held(1)[:2] == kit.held(0)[:2]
    assert kit.held(1)[2] != kit.held(0)[2]
    assert references(kit, *kit.held(0)) == [2, 2, 1]


def test_a_match_holds_nothing() -> None:
    kit = Kit()
    kit.start(0, [1] * 9)
    kit.end(0)
    kit.ledger.begin()
    before = bytes(kit.blocks.changed_seq), kit.kv.pool.cached_blocks
    assert kit.kv.match(1, np.array([1] * 9, np.int32), SALT) == 8
    assert (bytes(kit.blocks.changed_seq), kit.kv.pool.cached_blocks) == before


def test_a_request_looked_up_again_sees_what_was_cached_meanwhile() -> None:
    kit = Kit()
    kit.ledger.begin()
    kit.seat(1)
    waiting = np.array([1] * 9, np.int32)
    assert kit.kv.match(1, waiting, SALT) == 0
    kit.ledger.end()
    kit.start(0, [1] * 9)
    assert kit.kv.match(1, waiting, SALT) == 8


def test_a_request_that_does_not_fit_holds_nothing_and_is_counted() -> None:
    kit = Kit(small_limits(capacity=4))
    kit.start(0, [1] * 5)
    kit.start(1, [2] * 5)
    free, image = kit.kv.pool.free_blocks, bytes(kit.blocks.ref_count)
    assert kit.start(2, [1] * 9) is None
    assert (kit.kv.pool.free_blocks, bytes(kit.blocks.ref_count), kit.held(2)) == (free, image, [])
    assert kit.counter("allocation_failures_total") == 1
    assert kit.counter("prefix_queried_tokens_total") == 10


def test_a_request_cannot_evict_the_prefix_it_was_promised() -> None:
    kit = Kit(small_limits(capacity=4))
    kit.start(0, [1] * 12 + [2])
    kit.end(0)
    assert kit.kv.pool.cached_blocks == 3
    # One free block, three cached of which three are its own: 8 more tokens do not fit.
    assert kit.start(1, [1] * 12 + [3] * 8) is None
    assert kit.start(1, [1] * 12 + [3] * 4) == 12
    assert kit.counter("evictions_total") == 0


def test_an_arena_without_chunks_is_a_pool_without_blocks() -> None:
    kit = Kit(small_limits(logical_blocks=2, max_requests=2))
    kit.start(0, [1] * 12)
    assert kit.start(1, [2] * 12) is None
    with pytest.raises(NotEnoughBlocks) as full:
        kit.step({0: 28})
    assert isinstance(full.value, ArenaFull)
    assert len(kit.held(0)) == 3
    assert kit.kv.pool.active_blocks == 3


def test_hits_and_queries_are_counted_once_a_request_is_admitted() -> None:
    kit = Kit()
    kit.start(0, [1] * 9)
    kit.start(1, [1] * 9)
    assert kit.counter("prefix_queried_tokens_total") == 18
    assert kit.counter("prefix_hit_tokens_total") == 8


def test_without_prefix_caching_nothing_is_indexed_and_all_blocks_become_free() -> None:
    kit = Kit(small_limits(caching=False))
    kit.start(0, [1] * 9)
    assert kit.start(1, [1] * 9) == 0
    kit.end(0)
    kit.end(1)
    assert (kit.kv.pool.free_blocks, kit.kv.pool.cached_blocks) == (16, 0)
    assert kit.counter("prefix_queried_tokens_total") == 0
    assert not kit.blocks.prefix_hash.any()


def test_groups_with_blocks_of_several_sizes_are_refused_with_the_sizes() -> None:
    groups = (Group(), Group(name="window", block_size_tokens=32))
    limits = Limits(engine="e", capacity_blocks=4, max_requests=2, groups=groups)
    with pytest.raises(BadConfig, match="16 tokens in 0 bytes, 32 tokens in 0 bytes"):
        KvCache(Ledger.in_memory(limits))


# -- what is computed ---------------------------------------------------------------------------------------------


def test_filled_tokens_follow_the_computed_ones() -> None:
    kit = Kit()
    kit.start(0, [1] * 6)
    assert kit.blocks.filled_tokens[kit.held(0)].tolist() == [4, 2]
    kit.step({0: 9})
    assert kit.blocks.filled_tokens[kit.held(0)].tolist() == [4, 4, 1]
    assert kit.slots.computed_tokens[0] == 9


def test_only_full_blocks_are_found_later() -> None:
    kit = Kit()
    kit.start(0, [1] * 7)
    assert kit.start(1, [1] * 9) == 4
    kit.tokens[0, :9] = 1
    kit.step({0: 8})
    assert kit.start(2, [1] * 9) == 8


def test_generated_tokens_are_found_too() -> None:
    kit = Kit()
    kit.start(0, [1] * 3)
    kit.tokens[0, 3:8] = [5, 6, 7, 8, 9]
    for tokens in (4, 5, 6, 7, 8):
        kit.step({0: tokens})
    assert kit.start(1, [1, 1, 1, 5, 6, 7, 8, 9, 0]) == 8


def test_the_same_content_computed_twice_is_indexed_once_and_the_second_copy_becomes_free() -> None:
    kit = Kit()
    kit.ledger.begin()
    for slot in (0, 1):
        kit.seat(slot)
        kit.tokens[slot, :9] = 1
        assert kit.kv.admit(slot, kit.tokens[slot, :9], SALT, 9) == 0
    kit.commit({0: 9, 1: 9})
    kit.ledger.end()
    assert own_from(kit, 0, 1) == [8, 0]
    kit.end(1)
    assert (kit.kv.pool.free_blocks, kit.kv.pool.cached_blocks) == (13, 0)
    kit.end(0)
    assert (kit.kv.pool.free_blocks, kit.kv.pool.cached_blocks) == (14, 2)


def test_what_follows_a_duplicate_is_found_behind_the_indexed_one() -> None:
    kit = Kit()
    kit.ledger.begin()
    for slot, last in ((0, 5), (1, 6)):
        kit.seat(slot)
        kit.tokens[slot, :9] = [1] * 4 + [last] * 5
        kit.kv.admit(slot, kit.tokens[slot, :9], SALT, 9)
    kit.commit({0: 9, 1: 9})
    kit.ledger.end()
    assert kit.start(2, [1] * 4 + [6] * 5) == 8
    assert kit.held(2)[:2] == [kit.held(0)[0], kit.held(1)[1]]


# -- forks --------------------------------------------------------------------------------------------------------


def forked(tokens: int, *, forks: int = 1, **limits: int) -> Kit:
    kit = Kit(small_limits(**limits))
    kit.start(0, [1] * tokens)
    for slot in range(1, forks + 1):
        kit.fork(0, slot)
    return kit


def test_a_fork_shares_every_block_and_owns_none() -> None:
    kit = forked(6)
    assert kit.held(1) == kit.held(0)
    assert references(kit, *kit.held(0)) == [2, 2]
    assert own_from(kit, 0, 1) == [8, 8]
    assert kit.slots.computed_tokens[1] == 6


def test_the_first_to_write_into_a_shared_block_gets_a_copy() -> None:
    kit = forked(6)
    shared = kit.held(0)
    assert kit.step({1: 7}) == ([shared[1]], [kit.held(1)[1]])
    assert kit.held(0) == shared
    assert kit.held(1)[0] == shared[0] != kit.held(1)[1]
    assert own_from(kit, 0, 1) == [8, 6]
    assert kit.blocks.filled_tokens[kit.held(1)].tolist() == [4, 3]
    assert (kit.counter("cow_copies_total"), kit.counter("cow_bytes_total")) == (1, 64)


def test_the_last_holder_writes_without_a_copy() -> None:
    kit = forked(6)
    kit.end(1)
    assert kit.step({0: 7}) == ([], [])
    assert own_from(kit, 0) == [6]


def test_all_holders_at_once_make_one_copy_less_than_they_are() -> None:
    kit = forked(6, forks=3)
    shared = kit.held(0)[1]
    sources, targets = kit.step(dict.fromkeys(range(4), 7))
    assert sources == [shared] * 3
    assert sorted([*targets, shared]) == sorted(kit.held(slot)[1] for slot in range(4))
    assert references(kit, shared) == [1]


@pytest.mark.parametrize(
    ("sources", "held", "copied"),
    [([5], [1], []), ([5], [2], [0]), ([5, 5], [2, 2], [0]), ([5, 5], [3, 3], [0, 1]), ([5, 6, 5], [2, 1, 2], [0])],
)
def test_who_must_copy_depends_on_who_holds_the_block_by_then(
    sources: list[int], held: list[int], copied: list[int]
) -> None:
    assert must_copy(np.array(sources), np.array(held)).tolist() == copied


def test_a_fork_at_the_end_of_a_block_copies_nothing() -> None:
    kit = forked(8)
    assert kit.step({0: 9, 1: 9}) == ([], [])
    assert kit.held(0)[:2] == kit.held(1)[:2]
    assert kit.held(0)[2] != kit.held(1)[2]


def test_a_block_needed_for_a_copy_is_announced_and_its_lack_takes_nothing() -> None:
    kit = forked(6, capacity=2)
    slots, ends = np.array([0, 1]), np.array([7, 7])
    assert kit.kv.blocks_needed(slots, ends).tolist() == [1, 1]
    kit.ledger.begin()
    with pytest.raises(NotEnoughBlocks, match="1 blocks needed, 0 free"):
        kit.kv.grow(slots, ends)
    kit.ledger.end()
    assert kit.held(0) == kit.held(1)
    assert own_from(kit, 0, 1) == [8, 8]


def test_the_source_of_a_copy_is_pinned_until_the_copy_is_made() -> None:
    kit = forked(6, forks=2)
    source = kit.held(0)[1]
    kit.ledger.begin()
    kit.kv.grow(np.array([0, 1]), np.array([7, 7]))
    kit.kv.release(2, cause=ReleaseCause.API)
    kit.unseat(2)
    kit.ledger.end()
    assert references(kit, source) == [2]
    assert kit.ledger.pins.kind[kit.ledger.pins.block == source].tolist() == [PinKind.COPY_ON_WRITE] * 2
    kit.ledger.begin()
    kit.kv.copies_done()
    kit.ledger.end()
    assert references(kit, source) == [0]
    assert (kit.ledger.pins.block < 0).all()


def test_a_request_that_goes_before_its_copy_is_made_takes_the_copy_with_it() -> None:
    kit = forked(6)
    kit.ledger.begin()
    kit.kv.grow(np.array([0]), np.array([7]))
    kit.kv.release(0, cause=ReleaseCause.PREEMPTION)
    assert [part.tolist() for part in kit.kv.take_copies()] == [[], []]
    kit.ledger.end()
    assert references(kit, *kit.held(1)) == [1, 1]
    assert (kit.ledger.pins.block < 0).all()


def test_a_fork_of_a_fork_copies_on_its_own_account() -> None:
    kit = forked(6)
    kit.step({1: 7})
    kit.fork(1, 2)
    assert kit.step({2: 8}) == ([kit.held(1)[1]], [kit.held(2)[1]])
    assert len({kit.held(slot)[1] for slot in range(3)}) == 3


def test_forks_that_go_different_ways_are_found_apart() -> None:
    kit = forked(6)
    for slot in (0, 1):
        kit.tokens[slot, 6:9] = 20 + slot
    kit.step({0: 8, 1: 8})
    for slot in (0, 1):
        prompt = [1] * 6 + [20 + slot] * 3
        assert kit.start(2 + slot, prompt) == 8
        assert kit.held(2 + slot)[:2] == kit.held(slot)


# -- release ------------------------------------------------------------------------------------------------------


def test_a_released_request_leaves_its_head_in_the_cache_longest() -> None:
    kit = Kit()
    kit.start(0, [1] * 13)
    head = kit.held(0)
    assert kit.end(0) == 4
    assert kit.eviction_order() == head[2::-1]


def test_a_preempted_request_finds_its_blocks_again_and_their_fate_is_counted() -> None:
    kit = Kit()
    kit.start(0, [1] * 10)
    kit.ledger.begin()
    assert kit.kv.release(0, cause=ReleaseCause.PREEMPTION) == 3
    assert kit.kv.admit(0, kit.tokens[0, :10], SALT, 2) == 8
    kit.ledger.end()
    assert kit.counter("preempted_blocks_total", fate="kept") == 2
    assert kit.counter("preempted_blocks_total", fate="recycled") == 1


def test_a_release_leaves_the_slot_without_computed_tokens() -> None:
    kit = Kit()
    kit.start(0, [1] * 10)
    kit.ledger.begin()
    kit.kv.release(0, cause=ReleaseCause.FINISH)
    assert (kit.slots.computed_tokens[0], own_from(kit, 0), kit.held(0)) == (0, [0], [])


# -- measurements -------------------------------------------------------------------------------------------------


def test_a_shared_blocks_second_is_split_among_its_holders() -> None:
    kit = Kit()
    kit.start(0, [1] * 9)
    kit.clock.advance(SECOND_NS)
    kit.start(1, [1] * 9)
    kit.clock.advance(2 * SECOND_NS)
    kit.end(0)
    kit.clock.advance(SECOND_NS)
    kit.end(1)
    # 0: three blocks for 1 s, then one and two halves for 2 s. 1: the same 2 s, then three for 1 s.
    assert kit.slots.block_seconds[:2].tolist() == [3 + 4, 4 + 3]


def test_a_lifetime_is_observed_for_every_reference_and_says_whether_it_was_shared() -> None:
    kit = Kit()
    kit.start(0, [1] * 9)
    kit.clock.advance(SECOND_NS)
    kit.start(1, [1] * 9)
    kit.clock.advance(SECOND_NS)
    kit.end(1)
    assert kit.histogram("block_reference_lifetime", shared="true") == (2, 2.0)
    assert kit.histogram("block_reference_lifetime", shared="false") == (1, 1.0)
    kit.end(0)
    assert kit.histogram("block_reference_lifetime", shared="true") == (2, 2.0)
    assert kit.histogram("block_reference_lifetime", shared="false") == (4, 1.0 + 3 * 2.0)


def test_the_first_block_of_a_request_is_timed_once_under_its_class() -> None:
    kit = Kit()
    kit.ledger.begin()
    kit.seat(0)
    kit.slots.request_class[0] = RequestClass.BATCH
    kit.clock.advance(3 * SECOND_NS)
    kit.ledger.begin()
    kit.kv.admit(0, np.array([1, 2], np.int32), SALT, 2)
    kit.kv.release(0, cause=ReleaseCause.PREEMPTION)
    kit.clock.advance(SECOND_NS)
    kit.kv.admit(0, np.array([1, 2], np.int32), SALT, 2)
    assert kit.histogram("time_to_first_block", **{"class": "batch"}) == (1, 3.0)
    assert kit.slots.first_block_ns[0] == 4 * SECOND_NS


def test_the_peak_stays_when_blocks_are_given_back() -> None:
    kit = Kit()
    kit.start(0, [1] * 9)
    kit.ledger.begin()
    kit.kv.release(0, cause=ReleaseCause.PREEMPTION)
    kit.kv.admit(0, kit.tokens[0, :2], SALT, 2)
    assert kit.slots.peak_blocks[0] == 3


def test_a_virtual_ledger_does_not_depend_on_how_fast_the_machine_is() -> None:
    kit = Kit()
    kit.start(0, [1] * 9)
    assert kit.histogram("allocation") == (1, 0.0)
    assert kit.counter("sharing_overhead_seconds_total") == 0


def test_a_real_ledger_times_its_allocator_and_the_price_of_sharing() -> None:
    limits = small_limits()
    ledger = Ledger.in_memory(limits, clock=RealClock())
    cache = KvCache(ledger)
    ledger.begin()
    began = time.perf_counter()
    ledger.slots.serial[0] = 1
    cache.admit(0, np.ones(9, np.int32), SALT, 9)
    elapsed = time.perf_counter() - began
    spans = ledger.stats.plan.histograms["allocation", ()]
    allocation = float(ledger.stats.array[spans.index + spans.size - 1])
    sharing = ledger.stats.values[ledger.stats.counter("sharing_overhead_seconds_total")]
    assert 0 < allocation < elapsed
    assert 0 < sharing < elapsed
    assert allocation + sharing < elapsed


def test_two_ledgers_give_the_same_content_different_keys_unless_virtual() -> None:
    keys = []
    for clock in (RealClock(), RealClock(), None, None):
        ledger = Ledger.in_memory(small_limits(), clock=clock) if clock else Kit().ledger
        cache = KvCache(ledger)
        ledger.begin()
        ledger.slots.serial[0] = 1
        cache.admit(0, np.ones(5, np.int32), SALT, 5)
        cache.commit(np.array([0]), np.array([5]), np.ones((6, 64), np.int32), np.array([SALT], np.uint64))
        keys.append(int(ledger.blocks.prefix_hash[0]))
    assert len(set(keys[:2])) == 2
    assert keys[2] == keys[3] != 0
