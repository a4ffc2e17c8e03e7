"""Rows that decode step after step: what is kept for them is what the pages say, whoever comes, goes or is moved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kvledger_engine.attention.backend import TorchBackend
from kvledger_engine.attention.decoding import Decoding
from kvledger_engine.attention.layercells import LayerCells
from kvledger_engine.attention.plan import HeadLayout, plan_attention
from kvledger_engine.attention.reference import Gather, attend
from kvledger_engine.batch import Batch, HostCopies
from tests.engine.model.batches import batch, windowed

CPU = torch.device("cpu")
LAYOUT = HeadLayout(4, 2, 8)
SIZE, BLOCKS = 4, 600


class Pages:
    """A cache of one layer, sequences in it by slot, and steps over them through one backend and by the tiles."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (LAYOUT.kv_heads, BLOCKS, SIZE, LAYOUT.head_dim)
        self.keys, self.values = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
        self.backend, self._generator = TorchBackend(LAYOUT, CPU), generator
        self._free = np.random.default_rng(1).permutation(BLOCKS).astype(np.int32).tolist()
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}

    def begin(self, slot: int, tokens: int) -> None:
        """A sequence of so many cached tokens."""
        self.end(slot)
        self.tables[slot] = [self._free.pop() for _ in range(-(-tokens // SIZE))]
        self.lengths[slot] = tokens

    def end(self, slot: int) -> None:
        """Its blocks go back, and the next to take one takes the last of them."""
        self._free += self.tables.pop(slot, [])
        self.lengths.pop(slot, None)

    def step(self, counts: dict[int, int], **fields: Any) -> Batch:
        """The batch in which these slots compute so many tokens; fresh keys and values for them are written."""
        for slot, count in counts.items():
            while len(self.tables[slot]) * SIZE < self.lengths[slot] + count:
                self.tables[slot].append(self._free.pop())
        rows = [(self.lengths[slot], count) for slot, count in counts.items()]
        tables = [self.tables[slot] for slot in counts]
        made = batch(
            rows,
            slots=np.array(list(counts), np.int32),
            table_blocks=np.array([block for table in tables for block in table], np.int32),
            table_offsets=np.cumsum([0, *map(len, tables)]).astype(np.int32),
            **fields,
        )
        for slot, count in counts.items():
            for position in range(self.lengths[slot], self.lengths[slot] + count):
                block, offset = self.tables[slot][position // SIZE], position % SIZE
                for cells in (self.keys, self.values):
                    cells[:, block, offset] = torch.randn(
                        LAYOUT.kv_heads, LAYOUT.head_dim, generator=self._generator, dtype=torch.float64
                    )
            self.lengths[slot] += count
        return made

    def both(self, step: Batch) -> tuple[Tensor, Tensor]:
        """What the step's queries see through the backend, and by the tiles alone."""
        query = torch.randn(
            len(step.tokens), LAYOUT.heads, LAYOUT.head_dim, generator=self._generator, dtype=torch.float64
        )
        cells = LayerCells(self.keys, self.values)
        ours = self.backend.attend(query, cells, self.backend.plan(step, 0))
        return ours, attend(query, cells, plan_attention(step, LAYOUT, CPU), Gather())

    def check(self, counts: dict[int, int], **fields: Any) -> None:
        """One step, equal both ways."""
        ours, tiles = self.both(self.step(counts, **fields))
        torch.testing.assert_close(ours, tiles, atol=1e-12, rtol=0)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_steps_of_sequences_that_come_go_pause_and_grow_are_those_of_the_pages(data: st.DataObject) -> None:
    pages = Pages()
    for _ in range(12):
        for slot in data.draw(st.lists(st.integers(0, 5), max_size=2), label="begin anew"):
            pages.begin(slot, data.draw(st.integers(0, 140)))
        present = sorted(pages.tables)
        chosen = data.draw(st.lists(st.sampled_from(present), unique=True), label="rows") if present else []
        counts = {slot: data.draw(st.sampled_from([1, 1, 1, 5])) for slot in chosen}
        if counts:
            pages.check(counts)


def test_a_row_that_goes_on_fetches_its_new_position_alone() -> None:
    pages = Pages()
    pages.begin(0, 40)
    pages.begin(1, 9)
    fetched = []
    for _ in range(3):
        moves, others = Decoding(LAYOUT, layers=1).plan(pages.step({0: 1, 1: 1}), 0)
        fetched.append(len(moves[0][1].sources))
        assert not len(others)
    assert fetched == [41 + 10, 42 + 11, 43 + 12]
    decoding, fetched = Decoding(LAYOUT, layers=1), []
    for _ in range(3):
        moves, _ = decoding.plan(pages.step({0: 1, 1: 1}), 0)
        decoding.attended()
        fetched.append(len(moves[0][1].sources))
    assert fetched == [44 + 13, 2, 2]


@pytest.mark.parametrize("by_host", [False, True])
def test_a_block_that_was_copied_into_is_read_again(by_host: bool) -> None:
    pages = Pages()
    pages.begin(0, 10)
    pages.check({0: 1})
    pages.check({0: 1})
    step = pages.step({0: 1})
    target = pages.tables[0][1]
    for cells in (pages.keys, pages.values):
        cells[:, target] = cells[:, target] + 1
    none, source, filled = np.zeros(0, np.int32), np.array([599], np.int32), np.array([target], np.int32)
    copies: dict[str, Any] = {"copy_source": source, "copy_target": filled}
    if by_host:
        copies = {"host_copies": HostCopies(out_sources=none, out_hosts=none, in_hosts=source, in_targets=filled)}
    ours, tiles = pages.both(replace(step, **copies))
    torch.testing.assert_close(ours, tiles, atol=1e-12, rtol=0)


def test_after_a_step_that_failed_nothing_kept_is_trusted() -> None:
    pages = Pages()
    pages.begin(0, 20)
    pages.check({0: 1})
    pages.backend.plan(pages.step({0: 1}), 0)  # its compute failed: no layer attended
    pages.check({0: 1})
    pages.check({0: 1})


def test_a_slots_next_sequence_sees_nothing_of_the_last_one() -> None:
    pages = Pages()
    pages.begin(3, 30)
    pages.check({3: 1})
    pages.begin(3, 31)
    pages.check({3: 1})
    pages.begin(3, 7)
    pages.check({3: 1})


def test_what_a_former_row_left_is_never_multiplied() -> None:
    pages = Pages()
    pages.begin(0, 30)
    pages.begin(1, 12)
    pages.keys[:, pages.tables[0]] = torch.nan
    ours, _ = pages.both(pages.step({0: 1, 1: 1}))
    assert ours[0].isnan().all()
    assert ours[1].isfinite().all()
    pages.end(0)
    pages.begin(2, 5)
    for block in pages.tables[2]:
        pages.keys[:, block] = 1.0
    ours, _ = pages.both(pages.step({2: 1, 1: 1}))
    assert ours.isfinite().all()


@pytest.mark.parametrize("window", [6, 100])
def test_in_a_group_with_a_window_nobody_is_a_resident(window: int) -> None:
    moves, others = Decoding(LAYOUT, layers=1).plan(windowed([(30, 1), (5, 1)], window), 0)
    assert moves == ()
    assert others.tolist() == [0, 1]


def test_who_has_no_room_reads_the_pages() -> None:
    room = 2 * 2 * 2 * LAYOUT.kv_heads * LAYOUT.head_dim * 64
    moves, others = Decoding(LAYOUT, layers=2, most_elements=room).plan(batch([(30, 1), (500, 1), (20, 1), (0, 9)]), 0)
    assert [m.rows.tolist() for _, m in moves] == [[0, 2]]
    assert others.tolist() == [1, 3]
    moves, others = Decoding(LAYOUT, layers=2, most_elements=room - 1).plan(batch([(30, 1), (20, 1)]), 0)
    assert moves == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_every_format_is_kept_as_it_is_read_from_the_pages(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape = (LAYOUT.kv_heads, 64, SIZE)
    backend, scaled = TorchBackend(LAYOUT, CPU), dtype in (torch.int8, torch.float8_e4m3fn)
    keys, values = (torch.zeros((*shape, LAYOUT.head_dim), dtype=dtype) for _ in range(2))
    key_scales, value_scales = (torch.zeros(shape) if scaled else None for _ in range(2))
    cells = LayerCells(keys, values, key_scales, value_scales)
    table = np.arange(3, 13, dtype=np.int32)
    for start in (0, 30, 31, 32):
        count = 30 if start == 0 else 1
        step = batch([(start, count)], table_blocks=table, table_offsets=np.array([0, 10], np.int32))
        slots = torch.from_numpy(
            table[np.arange(start, start + count) // SIZE] * SIZE + np.arange(start, start + count) % SIZE
        )
        backend.write(cells, slots.long(), *(torch.randn(count, LAYOUT.kv_heads, LAYOUT.head_dim) for _ in range(2)))
        query = torch.randn(count, LAYOUT.heads, LAYOUT.head_dim)
        tiles = attend(query, cells, plan_attention(step, LAYOUT, CPU), Gather())
        torch.testing.assert_close(backend.attend(query, cells, backend.plan(step, 0)), tiles, atol=2e-6, rtol=2e-6)
