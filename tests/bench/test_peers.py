"""The peers do the work they are compared for: the same blocks, the same order, the same hits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import BenchError
from bench.plainpool import PlainPool
from bench.plainprefix import PlainPrefixIndex
from bench.plainrecords import RecordingPool
from bench.pool import BLOCK_TOKENS, LedgerPool, Race
from bench.prefix import HIT_TOKENS, Lookups
from bench.tmpfs import ledger_directory
from kvledger.words import BlockState

CAPACITY = 24
pytestmark = pytest.mark.needs("tmpfs")


@pytest.fixture
def directory() -> Iterator[Path]:
    with ledger_directory() as found:
        yield found


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, CAPACITY), st.booleans()), min_size=1, max_size=20))
def test_the_plain_pools_take_cache_and_evict_what_ours_does(rounds: list[tuple[int, bool]]) -> None:
    with ledger_directory() as directory:
        ours = LedgerPool(directory, CAPACITY)
        free = ours.ledger.free.list[::-1].tolist()
        plain, recording = PlainPool(free), RecordingPool(free)
        for number, (count, index) in enumerate(rounds):
            blocks = ours.take(count)
            assert plain.take(count) == recording.take(count, owner=number, tenant=0) == blocks.tolist()
            if index:
                keys = np.arange(count, dtype=np.uint64) + np.uint64(number * 1000 + 1)
                ours.index(blocks, np.full((count, BLOCK_TOKENS), number, np.int32))
                plain.register(blocks.tolist(), keys.tolist())
                recording.register(blocks.tolist(), keys.tolist())
            ours.release(blocks)
            plain.release(blocks[::-1].tolist())
            recording.release(blocks[::-1].tolist())
            assert len(plain.free) == len(recording.pool.free) == ours.pool.free_blocks
            assert len(plain.evictable) == ours.pool.cached_blocks
            assert recording.state == ours.ledger.blocks.state.tolist()
        assert recording.tenant_blocks[0] == 0
        ours.ledger.close()


def test_a_shared_block_is_cached_when_its_last_holder_gives_it_back() -> None:
    pool = PlainPool(range(4))
    blocks = pool.take(2)
    pool.register(blocks, [11, 12])
    pool.share(blocks[:1])
    pool.release(blocks)
    assert list(pool.evictable) == blocks[1:]
    pool.release(blocks[:1])
    assert list(pool.evictable) == [blocks[1], blocks[0]]
    with pytest.raises(IndexError, match="5 blocks wanted, 4 can be taken"):
        pool.take(5)


def test_the_recording_pool_keeps_a_share_clock_per_block() -> None:
    recording = RecordingPool(range(2))
    blocks = recording.take(2, owner=5, tenant=1)
    assert recording.tenant_blocks[1] == 2
    recording.release(blocks)
    assert all(seconds > 0 for seconds in recording.share_clock)
    assert recording.owner == [5, 5]
    assert recording.state == [int(BlockState.FREE)] * 2


def test_a_pool_that_does_not_index_is_noticed_by_the_blocks_it_hands_out(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerPool, "index", lambda *_: None)
    with pytest.raises(BenchError, match="different blocks"):
        Race(directory, 1024)


def test_a_race_must_end_with_every_block_cached(directory: Path) -> None:
    race = Race(directory, 1024)
    race.require_full_caches()
    race.plain.evictable.popitem()
    with pytest.raises(BenchError, match="work was left out"):
        race.require_full_caches()
    race.ours.ledger.close()


def test_the_plain_prefix_index_finds_full_blocks_up_to_the_first_difference_and_leaves_one_token() -> None:
    index, tokens = PlainPrefixIndex(4), list(range(16))
    index.register(tokens, [7, 3, 9, 1], salt=1)
    assert index.match([*tokens, 99], 1) == [7, 3, 9, 1]
    assert index.match(tokens, 1) == [7, 3, 9]
    assert index.match([*tokens[:9], 99, *tokens[10:]], 1) == [7, 3]
    assert index.match(tokens, 2) == []


def test_every_look_up_of_the_prefix_row_is_computed_anew_and_checked(directory: Path) -> None:
    lookups = Lookups(directory)
    assert lookups.ours() > 0
    assert lookups.plain() > 0
    with pytest.raises(BenchError, match=f"0 tokens were found cached, {HIT_TOKENS} are"):
        lookups._checked(1.0, 0)
    lookups.ledger.close()
