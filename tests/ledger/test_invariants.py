"""Healthy ledgers are clean; each structure damaged alone is named, with the block, its owner and its holders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.invariants import Suspect, counts, suspects
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.words import BlockState, FindingKind, PinKind, RequestState
from kvledger.writer import Ledger
from tests.ledger.toy import BLOCK_TOKENS, Toy, toy_limits

SECOND = 1_000_000_000
K = FindingKind


class Rig:
    """Two requests that share a prefix of two blocks, one cached block, one pinned, the rest free."""

    def __init__(self, groups: int = 1) -> None:
        self.clock = VirtualClock()
        self.ledger = Ledger.in_memory(toy_limits(groups=groups), clock=self.clock)
        self.toy = Toy(self.ledger)
        self.blocks, self.slots = self.ledger.blocks, self.ledger.slots
        self.reader = Reader.over(MemorySource(self.ledger.image))
        self.ledger.begin()
        self.a = self.toy.admit(3)
        self.prefix = self.toy.table(self.a)[:2]
        for block in self.prefix:
            self.toy.index(block)
        self.own(self.a, 2)
        self.b = self.toy.admit(2, shared=self.prefix)
        gone = self.toy.admit(1)
        self.cached = self.toy.table(gone)[0]
        self.toy.index(self.cached)
        self.toy.finish(gone)
        self.mine, self.theirs = self.toy.table(self.a)[2], self.toy.table(self.b)[2]
        self.free = int(self.ledger.free.list[3])
        self.toy.count()
        self.ledger.end()

    def own(self, slot: int, blocks: int) -> None:
        self.slots.own_from_token[slot] = blocks * BLOCK_TOKENS

    def publish(self, *acts: Callable[[], object]) -> None:
        self.ledger.begin()
        for act in acts:
            act()
        self.toy.count()
        self.ledger.end()

    def damage(self, block: int, act: Callable[[], object]) -> list[Suspect]:
        """Change something about a block, stamped, and say what an audit then suspects."""
        self.publish(lambda: self.toy.stamp(block), act)
        return suspects(self.reader.audit())


@pytest.fixture
def rig() -> Rig:
    return Rig()


def _kinds(found: list[Suspect]) -> set[tuple[FindingKind, int]]:
    return {(suspect.kind, suspect.block) for suspect in found}


# -- healthy ----------------------------------------------------------------------------------------------------------


def test_the_rig_is_healthy(rig: Rig) -> None:
    audit = rig.reader.audit()
    assert suspects(audit) == []
    assert counts(rig.reader.sample(), audit) == {}
    assert audit.table_references[rig.prefix].tolist() == [2, 2]
    assert audit.holders(rig.prefix[0]).tolist() == sorted([rig.a, rig.b])


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 3), st.lists(st.integers(1, 6), min_size=1, max_size=40))
def test_a_healthy_engine_never_raises_a_suspect(seed: int, groups: int, steps: list[int]) -> None:
    ledger = Ledger.in_memory(toy_limits(groups=groups), clock=VirtualClock())
    toy, reader = Toy(ledger, seed), Reader.over(MemorySource(ledger.image))
    for operations in steps:
        toy.step(operations)
        sample, audit = reader.sample(), reader.audit()
        assert suspects(audit) == []
        assert counts(sample, audit) == {}
        assert audit.damage == []
        assert audit.stable.all()
        held = [block for slot in toy.live for group in range(groups) for block in toy.table(slot, group)]
        assert sorted(audit.tables.blocks.tolist()) == sorted(held)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 6))
def test_in_the_middle_of_a_publication_no_stable_block_is_suspected(seed: int, steps: int, operations: int) -> None:
    ledger = Ledger.in_memory(toy_limits(), clock=VirtualClock())
    toy, reader = Toy(ledger, seed), Reader.over(MemorySource(ledger.image))
    for _ in range(steps):
        toy.step()
    ledger.begin()
    toy.operate(operations)
    audit = reader.audit()
    assert suspects(audit) == []
    assert not audit.quiescent
    assert not audit.stable[ledger.blocks.changed_seq == ledger.seq].any()


# -- reference counts alone -------------------------------------------------------------------------------------------


def test_a_lost_decrement_is_an_excess_reference_with_owner_and_holders(rig: Rig) -> None:
    block = rig.prefix[0]
    found = rig.damage(block, lambda: rig.blocks.ref_count.__setitem__(block, 3))
    stamp, owner = int(rig.blocks.changed_seq[block]), int(rig.slots.serial[rig.a])
    holders = tuple(sorted((rig.a, rig.b)))
    assert found == [Suspect(kind=K.EXCESS_REFERENCE, block=block, stamp=stamp, owner=owner, excess=1, holders=holders)]


def test_a_count_below_the_tables_is_a_missing_reference(rig: Rig) -> None:
    block = rig.prefix[1]
    found = rig.damage(block, lambda: rig.blocks.ref_count.__setitem__(block, 1))
    assert _kinds(found) == {(K.MISSING_REFERENCE, block)}
    assert found[0].excess == 1


def test_a_held_block_with_count_zero_is_missing_and_lost(rig: Rig) -> None:
    found = rig.damage(rig.mine, lambda: rig.blocks.ref_count.__setitem__(rig.mine, 0))
    assert _kinds(found) == {(K.MISSING_REFERENCE, rig.mine), (K.LOST_BLOCK, rig.mine)}


def test_a_free_block_with_a_reference_is_in_excess_and_listed_while_held(rig: Rig) -> None:
    found = rig.damage(rig.free, lambda: rig.blocks.ref_count.__setitem__(rig.free, 1))
    assert _kinds(found) == {(K.EXCESS_REFERENCE, rig.free), (K.DOUBLE_LISTED, rig.free)}


def test_a_count_beyond_all_bounds_is_named_and_harms_nothing(rig: Rig) -> None:
    found = rig.damage(rig.mine, lambda: rig.blocks.ref_count.__setitem__(rig.mine, 2**31 - 1))
    assert [(s.kind, s.excess) for s in found] == [(K.EXCESS_REFERENCE, 2**31 - 2)]
    found = rig.damage(rig.mine, lambda: rig.blocks.ref_count.__setitem__(rig.mine, -(2**31)))
    assert {(s.kind, s.excess) for s in found} == {(K.MISSING_REFERENCE, 2**31 + 1), (K.LOST_BLOCK, 1)}


# -- tables alone -----------------------------------------------------------------------------------------------------


def test_a_table_dropped_without_giving_its_blocks_back_leaves_excess_references(rig: Rig) -> None:
    table = rig.toy.table(rig.b)
    rig.publish(lambda: rig.toy.drop_tables(rig.b))
    found = suspects(rig.reader.audit())
    assert _kinds(found) == {(K.EXCESS_REFERENCE, block) for block in table}
    assert {s.holders for s in found} == {(), (rig.a,)}


def test_an_entry_that_names_another_block_is_excess_here_and_missing_there(rig: Rig) -> None:
    chunk = int(rig.slots.first_chunk[rig.a, 0])
    rig.toy.ledger.begin()
    rig.toy.stamp(rig.mine)
    rig.toy.stamp(rig.theirs)
    rig.ledger.arena.chunk[chunk, 2] = rig.theirs
    rig.ledger.end()
    found = suspects(rig.reader.audit())
    assert {(K.EXCESS_REFERENCE, rig.mine), (K.MISSING_REFERENCE, rig.theirs)} <= _kinds(found)


@pytest.mark.parametrize("entry", [-1, -5, 64, 2**31 - 1, -(2**31)])
def test_an_entry_that_names_no_block_is_damage_and_an_excess_reference(rig: Rig, entry: int) -> None:
    chunk = int(rig.slots.first_chunk[rig.a, 0])
    found = rig.damage(rig.mine, lambda: rig.ledger.arena.chunk.__setitem__((chunk, 2), entry))
    assert _kinds(found) == {(K.EXCESS_REFERENCE, rig.mine)}
    assert rig.reader.audit().damage == ["1 block-table entries name no block"]


@pytest.mark.parametrize("length", [-1, 1 << 20, 2**31 - 1])
def test_an_impossible_length_is_damage_and_the_other_tables_are_still_read(rig: Rig, length: int) -> None:
    found = rig.damage(rig.mine, lambda: rig.slots.table_blocks.__setitem__((rig.a, 0), length))
    audit = rig.reader.audit()
    assert (K.EXCESS_REFERENCE, rig.mine) in _kinds(found)
    assert any("impossible lengths" in note for note in audit.damage), audit.damage
    assert audit.table_references[rig.theirs] == 1


def test_a_chain_that_runs_in_a_circle_is_followed_for_its_length_and_no_further(rig: Rig) -> None:
    rig.publish(*[lambda: rig.toy.grow(rig.a)] * 6)
    first = int(rig.slots.first_chunk[rig.a, 0])
    rig.publish(lambda: rig.ledger.arena.next.__setitem__(first, first))
    audit = rig.reader.audit()
    assert len(audit.tables.blocks) == sum(len(rig.toy.table(s)) for s in (rig.b,)) + 9
    assert (K.MISSING_REFERENCE, rig.mine) in _kinds(suspects(audit))


@pytest.mark.parametrize("chunk", [-1, -7, 10_000, 2**31 - 1])
def test_a_broken_chain_is_damage_and_read_up_to_the_break(rig: Rig, chunk: int) -> None:
    rig.publish(*[lambda: rig.toy.grow(rig.a)] * 6)
    first = int(rig.slots.first_chunk[rig.a, 0])
    rig.publish(lambda: rig.ledger.arena.next.__setitem__(first, chunk))
    audit = rig.reader.audit()
    assert audit.damage == ["1 block tables have broken chains"]
    assert len(audit.tables.blocks) == 4 + 4
    assert K.EXCESS_REFERENCE in {s.kind for s in suspects(audit)}


# -- free list alone --------------------------------------------------------------------------------------------------


def test_a_block_missing_from_the_free_list_is_lost(rig: Rig) -> None:
    last = int(rig.ledger.free.list[rig.toy.word("free_count") - 1])
    found = rig.damage(last, lambda: rig.toy.put("free_count", rig.toy.word("free_count") - 1))
    assert _kinds(found) == {(K.LOST_BLOCK, last)}
    # The capacity identity names it too: the counts are each structure's own.
    rig.ledger.stats.values[rig.ledger.stats.gauge("active_blocks")] -= 1
    rig.ledger.publish_now()
    assert counts(rig.reader.sample()) == {"capacity": -1}


def test_a_block_twice_on_the_free_list_is_double_listed(rig: Rig) -> None:
    def push() -> None:
        rig.ledger.free.list[rig.toy.word("free_count")] = rig.free
        rig.toy.put("free_count", rig.toy.word("free_count") + 1)

    found = rig.damage(rig.free, push)
    assert [(s.kind, s.block, s.excess) for s in found] == [(K.DOUBLE_LISTED, rig.free, 1)]


def test_a_held_block_on_the_free_list_is_double_listed(rig: Rig) -> None:
    lost = int(rig.ledger.free.list[0])
    found = rig.damage(rig.mine, lambda: rig.ledger.free.list.__setitem__(0, rig.mine))
    assert _kinds(found) == {(K.DOUBLE_LISTED, rig.mine), (K.LOST_BLOCK, lost)}


@pytest.mark.parametrize("count", [-1, 65, 2**62])
def test_an_impossible_free_count_is_damage(rig: Rig, count: int) -> None:
    rig.publish(lambda: rig.toy.put("free_count", count))
    audit = rig.reader.audit()
    assert audit.damage == [f"free_count={count} of 64 entries"]
    assert len(audit.free) in (0, 64)


# -- eviction order and prefix index alone ----------------------------------------------------------------------------


def test_a_cached_block_without_its_ring_entry_is_lost(rig: Rig) -> None:
    position = int(rig.blocks.evict_ticket[rig.cached])
    found = rig.damage(rig.cached, lambda: rig.ledger.evict.ring.__setitem__(position, rig.mine))
    assert _kinds(found) == {(K.LOST_BLOCK, rig.cached)}


def test_a_held_block_in_the_eviction_order_is_double_listed(rig: Rig) -> None:
    found = rig.damage(rig.mine, lambda: rig.toy._cache(rig.mine))
    assert _kinds(found) == {(K.DOUBLE_LISTED, rig.mine)}


def test_an_index_entry_left_behind_by_an_eviction_is_stale(rig: Rig) -> None:
    def evict() -> None:
        rig.toy._uncache(rig.cached)
        rig.blocks.index_slot[rig.cached], rig.blocks.prefix_hash[rig.cached] = -1, 0
        rig.blocks.state[rig.cached] = BlockState.FREE
        rig.ledger.free.list[rig.toy.word("free_count")] = rig.cached
        rig.toy.put("free_count", rig.toy.word("free_count") + 1)

    assert _kinds(rig.damage(rig.cached, evict)) == {(K.STALE_INDEX_ENTRY, rig.cached)}


def test_an_index_entry_that_names_another_block_is_stale_on_both_sides(rig: Rig) -> None:
    slot = int(rig.blocks.index_slot[rig.cached])
    rig.publish(
        lambda: rig.toy.ledger.stamp(np.array([rig.mine, rig.cached], np.int32)),
        lambda: rig.ledger.index.block.__setitem__(slot, rig.mine),
    )
    assert _kinds(suspects(rig.reader.audit())) == {(K.STALE_INDEX_ENTRY, rig.mine), (K.STALE_INDEX_ENTRY, rig.cached)}


@pytest.mark.parametrize("entry", [-1, -2, -9, 64, 2**31 - 1])
def test_an_index_entry_overwritten_with_nothing_is_stale(rig: Rig, entry: int) -> None:
    slot = int(rig.blocks.index_slot[rig.cached])
    found = rig.damage(rig.cached, lambda: rig.ledger.index.block.__setitem__(slot, entry))
    assert _kinds(found) == {(K.STALE_INDEX_ENTRY, rig.cached)}
    assert bool(rig.reader.audit().damage) == (entry >= 64)


@pytest.mark.parametrize("slot", [128, 2**31 - 1])
def test_a_block_that_claims_a_slot_outside_the_index_is_stale(rig: Rig, slot: int) -> None:
    found = rig.damage(rig.mine, lambda: rig.blocks.index_slot.__setitem__(rig.mine, slot))
    assert _kinds(found) == {(K.STALE_INDEX_ENTRY, rig.mine)}


def test_a_key_that_is_not_the_blocks_is_stale(rig: Rig) -> None:
    slot = int(rig.blocks.index_slot[rig.cached])
    found = rig.damage(rig.cached, lambda: rig.ledger.index.key.__setitem__(slot, 12345))
    assert _kinds(found) == {(K.STALE_INDEX_ENTRY, rig.cached)}


# -- writes, pins, endings --------------------------------------------------------------------------------------------


def test_a_write_into_a_shared_block_is_named(rig: Rig) -> None:
    found = rig.damage(rig.prefix[1], lambda: rig.own(rig.b, 1))
    assert _kinds(found) == {(K.SHARED_WRITE, rig.prefix[1])}
    assert found[0].holders == tuple(sorted((rig.a, rig.b)))


def test_a_fork_that_has_not_written_yet_is_no_shared_write(rig: Rig) -> None:
    table = rig.toy.table(rig.a)

    def fork() -> None:
        slot = rig.toy.admit(0, shared=table)
        for each in (rig.a, slot):
            rig.own(each, len(table))
            rig.slots.computed_tokens[each] = len(table) * BLOCK_TOKENS - 1

    rig.publish(fork)
    assert suspects(rig.reader.audit()) == []


def test_a_pin_is_no_sharing_and_explains_a_reference(rig: Rig) -> None:
    rig.publish(lambda: rig.toy.pin(rig.mine), lambda: rig.own(rig.a, 0))
    assert {s.kind for s in suspects(rig.reader.audit())} <= {K.SHARED_WRITE}
    rig.publish(lambda: rig.own(rig.a, 2))
    assert suspects(rig.reader.audit()) == []


def test_a_pin_is_overdue_when_its_lease_has_run_out_and_only_then(rig: Rig) -> None:
    rig.publish(lambda: rig.toy.pin(rig.mine, lease_ns=2 * SECOND, kind=PinKind.DEFERRED_FREE))
    rig.clock.advance(2 * SECOND)
    rig.ledger.publish_now()
    assert suspects(rig.reader.audit()) == []
    rig.clock.advance(SECOND)
    rig.ledger.publish_now()
    found = suspects(rig.reader.audit())
    assert [(s.kind, s.block, s.pins, s.holders) for s in found] == [
        (K.PIN_OVERDUE, rig.mine, ("deferred_free",), (rig.a,))
    ]


def test_an_ended_request_that_keeps_its_blocks_is_overdue(rig: Rig) -> None:
    def end() -> None:
        rig.slots.changed_seq[rig.b] = rig.ledger.seq
        rig.slots.state[rig.b], rig.slots.finishing_ns[rig.b] = RequestState.FINISHING, rig.ledger.now_ns

    rig.publish(end)
    rig.clock.advance(3 * SECOND)
    rig.ledger.publish_now()
    assert suspects(rig.reader.audit(), finishing_limit_seconds=3.0) == []
    (found,) = suspects(rig.reader.audit(), finishing_limit_seconds=2.9)
    assert (found.kind, found.block, found.owner, found.excess) == (
        K.FINISHING_OVERDUE,
        -1,
        int(rig.slots.serial[rig.b]),
        4,
    )


# -- who is judged ----------------------------------------------------------------------------------------------------


def test_a_block_of_an_open_publication_is_not_judged(rig: Rig) -> None:
    rig.ledger.begin()
    rig.toy.stamp(rig.mine)
    rig.blocks.ref_count[rig.mine] = 7
    assert suspects(rig.reader.audit()) == []
    rig.ledger.end()
    assert _kinds(suspects(rig.reader.audit())) == {(K.EXCESS_REFERENCE, rig.mine)}


def test_at_most_so_many_suspects_of_a_kind_are_described(rig: Rig) -> None:
    rig.publish(
        lambda: rig.ledger.stamp(rig.ledger.free.list[:20]), lambda: rig.blocks.ref_count.__setitem__(slice(None), 9)
    )
    found = suspects(rig.reader.audit(), limit=5)
    assert 0 < max(sum(s.kind is kind for s in found) for kind in FindingKind) <= 5


def test_recounts_are_compared_only_while_nothing_moves(rig: Rig) -> None:
    stats = rig.ledger.stats
    rig.ledger.begin()
    stats.values[stats.gauge("cached_blocks")] += 1
    stats.values[stats.gauge("free_blocks")] -= 1
    rig.ledger.end()
    assert counts(rig.reader.sample(), rig.reader.audit()) == {"free": 1, "cached": -1}
    rig.ledger.begin()
    assert counts(rig.reader.sample(), rig.reader.audit()) == {}


def test_a_state_that_contradicts_the_count_and_a_wrong_index_count_are_violations(rig: Rig) -> None:
    rig.publish(lambda: rig.blocks.state.__setitem__(rig.mine, BlockState.CACHED))
    rig.publish(lambda: rig.toy.put("index_used", 99))
    found = counts(rig.reader.sample(), rig.reader.audit())
    assert found == {"state": 1, "index": 3 - 99}


def test_every_group_has_its_own_tables() -> None:
    rig = Rig(groups=2)
    audit = rig.reader.audit()
    assert suspects(audit) == []
    lost = rig.toy.table(rig.b, 1)[0]
    found = rig.damage(lost, lambda: rig.slots.table_blocks.__setitem__((rig.b, 1), 0))
    assert (K.EXCESS_REFERENCE, lost) in _kinds(found)
