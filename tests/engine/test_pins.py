"""Pins keep blocks that no table names, and only as many as the ledger can show."""

from __future__ import annotations

import numpy as np
import pytest

from kvledger.layout import CONTROL_INDEX
from kvledger.words import BlockState, PinKind
from kvledger_engine.pins import UNPINNED
from tests.engine.cachekit import Kit, small_limits

SECOND_NS = 1_000_000_000


def pin(kit: Kit, *blocks: int, kind: PinKind = PinKind.TRANSFER, holder: int = 77) -> list[int]:
    kit.ledger.begin()
    entries = kit.kv.pins.add(np.array(blocks), kind, holder, lease_ns=SECOND_NS)
    kit.ledger.end()
    return [int(entry) for entry in entries]


def unpin(kit: Kit, *entries: int) -> None:
    kit.ledger.begin()
    kit.kv.pins.drop(np.array(entries))
    kit.ledger.end()


def test_a_pinned_block_outlives_its_request_and_is_not_taken() -> None:
    kit = Kit(small_limits(capacity=4))
    kit.start(0, [1, 2, 3])
    entry = pin(kit, 0)[0]
    kit.end(0)
    assert kit.blocks.state[0] == BlockState.ACTIVE
    assert kit.start(1, [5] * 16) is None
    unpin(kit, entry)
    assert kit.blocks.state[0] == BlockState.FREE
    assert kit.start(1, [5] * 16) == 0


def test_a_pin_says_what_it_is_whose_since_when_and_for_how_long() -> None:
    kit = Kit()
    kit.start(0, [1, 2, 3])
    kit.clock.advance(5)
    entry = pin(kit, 0, kind=PinKind.CONNECTOR, holder=9)[0]
    pins = kit.ledger.pins
    row = (pins.block[entry], pins.kind[entry], pins.holder[entry], pins.since_ns[entry], pins.lease_ns[entry])
    assert row == (0, PinKind.CONNECTOR, 9, kit.clock.now_ns(), SECOND_NS)


def test_a_full_table_refuses_the_rest_and_takes_no_reference_for_them() -> None:
    kit = Kit(small_limits(pins=2))
    kit.start(0, [1] * 12)
    entries = pin(kit, 0, 1, 2)
    assert entries[2] == UNPINNED
    assert UNPINNED not in entries[:2]
    assert kit.blocks.ref_count[:3].tolist() == [2, 2, 1]
    assert kit.ledger.control[CONTROL_INDEX["overflows"]] == 1
    unpin(kit, *entries)
    assert kit.blocks.ref_count[:3].tolist() == [1, 1, 1]


def test_a_cached_block_is_brought_back_by_a_pin() -> None:
    kit = Kit()
    kit.start(0, [1] * 5)
    kit.end(0)
    assert kit.kv.pool.cached_blocks == 1
    entry = pin(kit, 0)[0]
    assert (kit.kv.pool.cached_blocks, kit.kv.pool.active_blocks) == (0, 1)
    unpin(kit, entry)
    assert (kit.kv.pool.cached_blocks, kit.kv.pool.active_blocks) == (1, 0)


def test_one_block_pinned_twice_needs_both_dropped() -> None:
    kit = Kit()
    kit.start(0, [1, 2])
    entries = pin(kit, 0, 0)
    kit.end(0)
    unpin(kit, entries[0])
    assert kit.kv.pool.active_blocks == 1
    unpin(kit, entries[1])
    assert kit.kv.pool.active_blocks == 0


def test_dropping_a_pin_twice_is_our_own_bug() -> None:
    kit = Kit()
    kit.start(0, [1, 2])
    entry = pin(kit, 0)[0]
    unpin(kit, entry)
    with pytest.raises(AssertionError, match="dropped twice"):
        unpin(kit, entry)
