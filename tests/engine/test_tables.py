"""Block tables against plain lists, with chunks so small that most tables span several."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.clock import VirtualClock
from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_engine.errors import ArenaFull
from kvledger_engine.memory import CacheMemory
from kvledger_engine.tables import BlockTables
from tests.engine.cachekit import Memory, shared_memory, small_limits

SLOTS = 4


def new_tables(chunk_blocks: int = 2, logical_blocks: int = 20) -> tuple[Ledger, BlockTables]:
    memory: Memory = shared_memory(
        small_limits(chunk_blocks=chunk_blocks, logical_blocks=logical_blocks, max_requests=SLOTS)
    )
    ledger = memory.ledger(VirtualClock())
    ledger.begin()
    return ledger, BlockTables(CacheMemory(ledger))


FREE_CHUNKS = CONTROL_INDEX["free_chunk_count"]
MOVES = st.tuples(
    st.sampled_from(("append", "append", "replace", "drop", "clear")),
    st.lists(st.integers(0, 5), min_size=SLOTS, max_size=SLOTS),
)


def append(tables: BlockTables, slots: list[int], counts: list[int], blocks: list[int]) -> None:
    at, count = np.array(slots, np.intp), np.array(counts, np.intp)
    tables.check(at, count)
    tables.append(at, count, np.array(blocks, np.int32))


def test_blocks_come_back_in_order_across_chunks() -> None:
    _, tables = new_tables()
    append(tables, [2, 0], [3, 1], [5, 6, 7, 9])
    append(tables, [2], [4], [1, 2, 3, 4])
    assert tables.blocks_of(2).tolist() == [5, 6, 7, 1, 2, 3, 4]
    blocks, offsets = tables.gather(np.array([0, 1, 2]))
    assert blocks.tolist() == [9, 5, 6, 7, 1, 2, 3, 4]
    assert offsets.tolist() == [0, 1, 1, 8]


def test_an_entry_is_read_and_replaced_wherever_it_lies() -> None:
    _, tables = new_tables()
    append(tables, [1, 3], [5, 2], [0, 1, 2, 3, 4, 8, 9])
    assert tables.entries(np.array([1, 1, 3, 1]), np.array([0, 4, 1, 3])).tolist() == [0, 4, 9, 3]
    tables.replace(np.array([1, 3]), np.array([2, 0]), np.array([11, 12]))
    assert tables.blocks_of(1).tolist() == [0, 1, 11, 3, 4]
    assert tables.blocks_of(3).tolist() == [12, 9]


def test_a_full_arena_refuses_before_anything_changes_and_is_counted() -> None:
    ledger, tables = new_tables(logical_blocks=2)
    append(tables, [0], [4], [0, 1, 2, 3])
    before = bytes(ledger.slots.table_blocks), bytes(ledger.arena.next), int(ledger.control[FREE_CHUNKS])
    with pytest.raises(ArenaFull, match=r"4 block-table chunks needed, 3 free"):
        tables.check(np.array([0, 1]), np.array([4, 3]))
    assert (bytes(ledger.slots.table_blocks), bytes(ledger.arena.next), int(ledger.control[FREE_CHUNKS])) == before
    assert ledger.control[CONTROL_INDEX["overflows"]] == 1


def test_a_cleared_table_gives_every_chunk_back() -> None:
    ledger, tables = new_tables()
    free = int(ledger.control[FREE_CHUNKS])
    append(tables, [0, 1], [7, 2], list(range(9)))
    tables.clear(0)
    tables.clear(1)
    assert int(ledger.control[FREE_CHUNKS]) == free
    assert sorted(ledger.arena.free_chunks[:free].tolist()) == list(range(free))


def test_a_slot_is_stamped_when_its_table_changes() -> None:
    ledger, tables = new_tables()
    append(tables, [1], [1], [0])
    assert ledger.slots.changed_seq.tolist() == [0, ledger.seq, 0, 0]


@settings(max_examples=200)
@given(chunk_blocks=st.integers(1, 4), moves=st.lists(MOVES, max_size=30))
def test_tables_are_lists_whatever_is_done_to_them(chunk_blocks: int, moves: list[tuple[str, list[int]]]) -> None:
    ledger, tables = new_tables(chunk_blocks)
    model: list[list[int]] = [[] for _ in range(SLOTS)]
    numbers = iter(range(10_000))
    for move, counts in moves:
        if move == "append":
            grown = [slot for slot in range(SLOTS) if counts[slot]]
            blocks = [[next(numbers) for _ in range(counts[slot])] for slot in grown]
            after = [len(table) + counts[slot] for slot, table in enumerate(model)]
            fits = sum(-(-length // chunk_blocks) for length in after) <= ledger.limits.arena_chunks
            try:
                append(tables, grown, [counts[slot] for slot in grown], [block for part in blocks for block in part])
            except ArenaFull:
                full = True
            else:
                full = False
            assert full != fits
            for slot, part in zip(grown, blocks if fits else [[]] * len(grown), strict=True):
                model[slot] += part
        elif move == "replace":
            at = [(slot, counts[slot] % len(model[slot])) for slot in range(SLOTS) if model[slot]]
            for slot, index in at:
                model[slot][index] = next(numbers)
            new = np.array([model[slot][index] for slot, index in at], np.int32)
            slots, indexes = np.array(at, np.intp).reshape(-1, 2).T
            tables.replace(slots, indexes, new)
        elif move == "drop":
            cut = {slot: min(counts[slot], len(model[slot]) - 1) for slot in range(SLOTS) if model[slot]}
            tables.drop(np.array(list(cut), np.intp), np.array(list(cut.values()), np.intp))
            for slot, count in cut.items():
                del model[slot][:count]
        else:
            slot = counts[0] % SLOTS
            tables.clear(slot)
            model[slot] = []
        flat, offsets = tables.gather(np.arange(SLOTS))
        assert [flat[a:b].tolist() for a, b in pairwise(offsets)] == model
        used = sum(-(-len(table) // chunk_blocks) for table in model)
        assert ledger.control[FREE_CHUNKS] == ledger.limits.arena_chunks - used
