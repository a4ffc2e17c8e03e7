"""Audits under change: what may move between two reads, and what is not looked at again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from kvledger import buffers, links, parts, sweep
from kvledger.clock import VirtualClock
from kvledger.invariants import suspects
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.words import FindingKind
from kvledger.writer import Ledger
from tests.ledger.test_reader import Interfering, Rig
from tests.ledger.toy import Toy, toy_limits


@pytest.fixture
def rig() -> Rig:
    return Rig()


SECTIONS = (
    "slot.serial", "slot.table_blocks", "slot.first_chunk", "slot.changed_seq", "arena.next", "arena.chunk",
    "free.list", "pin.block", "pin.kind", "block.ref_count", "block.state", "block.index_slot", "block.changed_seq",
    "block.evict_ticket", "evict.ring", "index.block", "block.prefix_hash", "index.key", "control",
)  # fmt: skip


@pytest.mark.parametrize("section", SECTIONS)
def test_publications_between_any_two_reads_never_make_a_suspect_or_damage(rig: Rig, section: str) -> None:
    for _ in range(30):
        rig.toy.step()
    rig.source.before[section] = lambda: rig.toy.step(4)
    for _ in range(15):
        audit = rig.reader.audit()
        assert suspects(audit) == []
        assert audit.damage == []


@pytest.mark.parametrize("section", SECTIONS)
def test_a_publication_left_open_between_any_two_reads_never_makes_a_suspect(rig: Rig, section: str) -> None:
    for number in range(15):
        rig.toy.step()
        opened = [False]

        def begin(opened: list[bool] = opened) -> None:
            if not opened[0]:
                opened[0] = True
                rig.ledger.begin()
                rig.toy.operate(4)

        rig.source.before[section] = begin
        audit = rig.reader.audit()
        rig.source.before.clear()
        assert suspects(audit) == [], number
        if opened[0]:
            rig.toy.count()
            rig.ledger.end()


def test_a_leak_beside_a_moving_writer_is_named_at_once(rig: Rig) -> None:
    slot = rig.publish(lambda: rig.toy.admit(2))
    rig.toy.live.remove(slot)
    leaked = rig.toy.table(slot)[0]
    rig.publish(lambda: rig.toy.stamp(leaked), lambda: rig.ledger.blocks.ref_count.__setitem__(leaked, 2))
    rig.source.before["block.ref_count"] = lambda: rig.toy.step(4)
    for _ in range(10):
        assert {(s.kind, s.block) for s in suspects(rig.reader.audit())} == {(FindingKind.EXCESS_REFERENCE, leaked)}


def test_quiescent_means_that_no_publication_was_open_or_ended_meanwhile(rig: Rig) -> None:
    assert rig.reader.audit().quiescent
    rig.source.before["block.state"] = rig.ledger.publish_now
    assert not rig.reader.audit().quiescent


def test_values_and_columns_are_of_the_ledger(rig: Rig) -> None:
    slot = rig.publish(lambda: rig.toy.admit(3))
    table = np.array(rig.toy.table(slot), np.int32)
    audit = rig.reader.audit()
    assert audit.values("owner", table).tolist() == [1, 1, 1]
    assert audit.column("owner")[table].tolist() == [1, 1, 1]
    assert audit.tables.blocks.tolist() == table.tolist()


# -- large pools: pointers are followed part by part ------------------------------------------------------------------


WITHIN_KEYS = links.AUDITS_PER_ROUND * links.ROUNDS_PER_KEYS


class Large:
    """A pool larger than what every audit follows, with a few cached, indexed blocks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parts, "WHOLE_UP_TO", 8)
        monkeypatch.setattr(links, "SLOTS_TOGETHER", 5)
        monkeypatch.setattr(sweep, "PIECE", 80)
        limits = replace(toy_limits(600), max_requests=40, chunk_blocks=8)
        self.ledger = Ledger.in_memory(limits, clock=VirtualClock())
        self.toy, self.reader = Toy(self.ledger, 5), Reader.over(MemorySource(self.ledger.image))
        self.publish(*[self._cached] * 30)
        assert suspects(self.reader.audit()) == []

    def _cached(self) -> None:
        slot = self.toy.admit(4)
        for block in self.toy.table(slot):
            self.toy.index(block)
        self.toy.finish(slot)

    def publish(self, *acts: Callable[[], object]) -> None:
        self.ledger.begin()
        for act in acts:
            act()
        self.toy.count()
        self.ledger.end()

    @property
    def cached(self) -> list[int]:
        return np.flatnonzero(self.ledger.blocks.evict_ticket >= 0).tolist()

    def rounds_until_named(self, kind: FindingKind, block: int) -> int:
        for round_number in range(2 * WITHIN_KEYS):
            if (kind, block) in {(s.kind, s.block) for s in suspects(self.reader.audit())}:
                return round_number
        raise AssertionError(f"{kind} of block {block} was never named")


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Large:
    return Large(monkeypatch)


def test_a_large_healthy_pool_stays_clean_round_after_round(large: Large) -> None:
    for _ in range(100):
        large.toy.step(4)
        assert suspects(large.reader.audit()) == []


def _forget_entry(large: Large, block: int) -> None:
    large.toy.stamp(block)
    large.ledger.blocks.index_slot[block] = -1


def _lose_ring_entry(large: Large, block: int) -> None:
    large.toy.stamp(block)
    ring = large.ledger.evict.ring
    ring[int(large.ledger.blocks.evict_ticket[block]) % len(ring)] = -1


def _clear_slot(large: Large, block: int) -> None:
    large.toy.stamp(block)
    large.ledger.index.block[large.ledger.blocks.index_slot[block]] = -2


@pytest.mark.parametrize(
    ("act", "kind", "within"),
    [
        (_forget_entry, FindingKind.STALE_INDEX_ENTRY, links.AUDITS_PER_ROUND),
        (_clear_slot, FindingKind.STALE_INDEX_ENTRY, links.AUDITS_PER_ROUND),
        (_lose_ring_entry, FindingKind.LOST_BLOCK, 0),
    ],
)
@pytest.mark.parametrize("nth", [0, 50, 119])
def test_a_wrong_pointer_is_named_in_its_turn_and_again_until_it_is_mended(
    large: Large, act: Callable[[Large, int], None], kind: FindingKind, within: int, nth: int
) -> None:
    for _ in range(nth % 7):
        large.reader.audit()
    block = large.cached[nth]
    before = int(large.ledger.blocks.index_slot[block])
    large.publish(lambda: act(large, block))
    assert large.rounds_until_named(kind, block) <= within
    for _ in range(links.AUDITS_PER_ROUND + 4):
        assert {(s.kind, s.block) for s in suspects(large.reader.audit())} == {(kind, block)}

    def mend() -> None:
        large.toy.stamp(block)
        large.ledger.blocks.index_slot[block], large.ledger.index.block[before] = before, block
        ticket = int(large.ledger.blocks.evict_ticket[block])
        large.ledger.evict.ring[ticket % len(large.ledger.evict.ring)] = block

    large.publish(mend)
    for _ in range(3):
        assert suspects(large.reader.audit()) == []


def test_many_wrong_pointers_are_named_each_time_and_nothing_else(
    large: Large, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "FEW_ROWS", 2)
    blocks = large.cached[::9]
    slots = large.ledger.blocks.index_slot[blocks].copy()
    large.publish(lambda: large.ledger.index.block.__setitem__(slots, -2))
    for number in range(3 * links.AUDITS_PER_ROUND):
        named = {suspect.block for suspect in suspects(large.reader.audit())}
        assert named <= set(blocks)
        assert number < links.AUDITS_PER_ROUND or named == set(blocks)
    large.publish(lambda: large.ledger.index.block.__setitem__(slots, blocks))
    assert suspects(large.reader.audit()) == []


def test_an_index_built_anew_in_an_open_publication_is_not_remembered_as_wrong(large: Large) -> None:
    large.ledger.begin()
    large.ledger.stamp(np.arange(600))
    large.ledger.index.block[:] = -1
    for _ in range(links.AUDITS_PER_ROUND):
        assert suspects(large.reader.audit()) == []
    assert not len(large.reader._memory.links._wrong_slots)
    assert not len(large.reader._memory.links._wrong_blocks)


def test_a_change_that_nobody_stamped_is_named_within_a_round(large: Large) -> None:
    block = large.cached[60]
    large.ledger.index.block[large.ledger.blocks.index_slot[block]] = -2
    assert large.rounds_until_named(FindingKind.STALE_INDEX_ENTRY, block) <= links.AUDITS_PER_ROUND
    assert large.rounds_until_named(FindingKind.STALE_INDEX_ENTRY, block) == 0, "once found it is looked at every time"


@pytest.mark.parametrize("nth", [0, 33, 100])
def test_another_key_is_named_in_the_round_of_the_keys(large: Large, nth: int) -> None:
    block = large.cached[nth]
    large.ledger.index.key[large.ledger.blocks.index_slot[block]] = 1
    within = large.rounds_until_named(FindingKind.STALE_INDEX_ENTRY, block)
    assert within <= WITHIN_KEYS
    assert large.rounds_until_named(FindingKind.STALE_INDEX_ENTRY, block) == 0


def test_an_entry_for_a_block_that_never_named_it_is_found_in_its_turn(large: Large) -> None:
    block = int(large.ledger.free.list[0])
    empty = int(np.flatnonzero(large.ledger.index.block == -1)[7])
    large.publish(lambda: large.toy.stamp(block), lambda: large.ledger.index.block.__setitem__(empty, block))
    assert large.rounds_until_named(FindingKind.STALE_INDEX_ENTRY, block) <= links.AUDITS_PER_ROUND
    assert large.rounds_until_named(FindingKind.STALE_INDEX_ENTRY, block) == 0


def test_an_entry_left_behind_while_an_audit_looked_is_named_in_its_turn(large: Large) -> None:
    block = large.cached[80]
    source = Interfering(large.ledger)
    large.reader = Reader.over(source)
    assert suspects(large.reader.audit()) == []
    left = [1]

    def forget() -> None:
        if left:
            left.pop()
            large.publish(lambda: _forget_entry(large, block))

    source.before["block.index_slot"] = forget
    while left:
        assert suspects(large.reader.audit()) == []
    assert large.rounds_until_named(FindingKind.STALE_INDEX_ENTRY, block) <= links.AUDITS_PER_ROUND
