"""Cache groups with windows: what leaves a window is given back, and nothing that is still seen ever is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger import invariants
from kvledger.geometry import HeadShape, LayerGroup
from kvledger.limits import Group
from kvledger.words import BlockState, ReleaseCause
from kvledger_engine.errors import BadConfig
from kvledger_engine.windows import Windows, most_blocks
from tests.engine.cachekit import MAX_TOKENS, SALT, Kit, shared_memory, small_limits, windowed_limits

SIZE, SECOND_NS = 4, 1_000_000_000
FULL_AND_WINDOW, WINDOW_ALONE, THREE = (0, 10), (7,), (0, 5, 16)
KINDS = (FULL_AND_WINDOW, WINDOW_ALONE, THREE, (3, 9), (0, 0, 1))
WITH_SINKS = [(kind, 0) for kind in KINDS] + [(WINDOW_ALONE, 1), (WINDOW_ALONE, 3), ((0, 5), 2), ((3, 9), 1)]
"""Windows of the groups, and the blocks before them that are kept all the same."""


class Cells:
    """A kit whose compute stores, for every token and group, what the tokens up to it are."""

    def __init__(self, windows: tuple[int, ...], sink_blocks: int = 0, **options: Any) -> None:
        self.kit = Kit(memory=shared_memory(windowed_limits(windows, sink_blocks, **options)))
        self.sinks = sink_blocks
        self.windows = windows
        self.cells: dict[tuple[int, int], int] = {}
        self.live: dict[int, int] = {}

    # -- the engine's way -----------------------------------------------------------------------------------------

    def admit(self, slot: int, tokens: list[int]) -> int | None:
        kit = self.kit
        kit.ledger.begin()
        kit.seat(slot)
        kit.tokens[slot] = 0
        kit.tokens[slot, : len(tokens)] = tokens
        given = kit.tokens[slot, : len(tokens)]
        found = kit.kv.match(slot, given, SALT)
        hit = kit.kv.admit(slot, given, SALT, len(tokens) - found)
        if hit is None:
            kit.unseat(slot)
        else:
            assert hit == found
            self.live[slot] = hit
            self._compute({slot: len(tokens)})
        kit.ledger.end()
        return hit

    def step(self, after: dict[int, int]) -> bool:
        kit = self.kit
        slots, ends = np.array(list(after), np.intp), np.array(list(after.values()), np.intp)
        if not after or int(kit.kv.blocks_needed(slots, ends).sum()) > kit.kv.pool.available_blocks:
            return False
        kit.ledger.begin()
        kit.kv.grow(slots, ends)
        kit.ledger.end()
        kit.ledger.begin()
        self._compute(after)
        kit.ledger.end()
        return True

    def _compute(self, after: dict[int, int]) -> None:
        """Make the copies, write the new tokens through the tables, commit."""
        kv = self.kit.kv
        sources, targets = kv.take_copies()
        copied = {
            (target, at): self.cells[source, at]
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True)
            for at in range(SIZE)
            if (source, at) in self.cells
        }
        self.cells |= copied
        for slot, end in after.items():
            for group in range(len(self.windows)):
                for position in range(self.live[slot], end):
                    block, at = self.place(slot, group, position)
                    self.cells[block, at] = self.content(slot, group, position)
        kv.copies_done()
        self.kit.commit(after)
        self.live |= after

    def fork(self, source: int, target: int) -> None:
        self.kit.fork(source, target)
        self.live[target] = self.live[source]
        # They go on with other tokens: a write into what both hold would show.
        self.kit.tokens[target, self.live[source] :] = 2 + target

    def end(self, slot: int, cause: ReleaseCause = ReleaseCause.FINISH) -> None:
        self.kit.end(slot, cause)
        del self.live[slot]

    # -- what is so -----------------------------------------------------------------------------------------------

    def content(self, slot: int, group: int, position: int) -> int:
        return hash((group, *self.kit.tokens[slot, : position + 1].tolist()))

    def table(self, slot: int, group: int) -> tuple[list[int], int]:
        """A slot's table in a group, and how many blocks of its sequence lie in its gap, behind the sinks."""
        groups = self.kit.kv.group_tables(np.array([slot]))
        return groups[group].blocks.tolist(), int(groups[group].skipped[0])

    def place(self, slot: int, group: int, position: int) -> tuple[int, int]:
        blocks, skipped = self.table(slot, group)
        number, sinks = position // SIZE, self.sinks if self.windows[group] else 0
        assert number < sinks or number >= sinks + skipped
        return blocks[number if number < sinks else number - skipped], position % SIZE

    def check(self) -> None:
        """Each window is there and holds what its tokens are; tables are as long as the formula; the ledger agrees."""
        self._forget_free()
        for slot, tokens in self.live.items():
            for group, window in enumerate(self.windows):
                sinks, first = self.sinks * SIZE if window else 0, max(0, tokens - window) if window else 0
                heads = HeadShape(kv_heads=1, head_dim=2)
                shape = LayerGroup(layers=1, shape=heads, window_tokens=window or None, sink_tokens=sinks)
                held = len(self.table(slot, group)[0])
                assert held * SIZE == shape.tokens_held(tokens, SIZE)
                for position in [*range(min(first, sinks)), *range(first, tokens)]:
                    assert self.cells[self.place(slot, group, position)] == self.content(slot, group, position)
        audit, sample = self.kit.reader.audit(), self.kit.reader.sample(now_ns=self.kit.clock.now_ns())
        assert invariants.suspects(audit) == []
        assert audit.damage == []
        assert invariants.counts(sample, audit) == {}

    def _forget_free(self) -> None:
        """Nobody can read a block that is free."""
        free = self.kit.blocks.state == BlockState.FREE
        self.cells = {place: content for place, content in self.cells.items() if not free[place[0]]}


MOVES = st.lists(
    st.tuples(
        st.sampled_from(("admit", "step", "step", "step", "fork", "end", "preempt")),
        st.integers(0, 5),
        st.integers(0, 5),
        st.integers(1, 30),
    ),
    max_size=25,
)


@pytest.mark.parametrize(("windows", "sink_blocks"), WITH_SINKS)
@given(moves=MOVES, capacity=st.integers(6, 60), caching=st.booleans())
@settings(max_examples=25)
def test_whatever_is_done_a_window_is_there_and_what_left_it_is_not(
    windows: tuple[int, ...],
    sink_blocks: int,
    moves: list[tuple[str, int, int, int]],
    capacity: int,
    caching: bool,
) -> None:
    cells = Cells(windows, sink_blocks, capacity=capacity, caching=caching)
    for move, one, other, number in moves:
        cells.kit.clock.advance(SECOND_NS)
        if move == "admit" and one not in cells.live:
            # Few different tokens, in runs of a block: prefixes are met again, and differ later.
            cells.admit(one, [(number >> at // SIZE) & 1 for at in range(1 + (number * 7 + other) % 40)])
        elif move == "step":
            after = {slot: tokens + 1 + (number + slot) % 3 for slot, tokens in cells.live.items()}
            cells.step({slot: end for slot, end in after.items() if end < MAX_TOKENS})
        elif move == "fork" and one in cells.live and other not in cells.live and number > 3:
            cells.fork(one, other)
        elif move in ("end", "preempt") and one in cells.live:
            cells.end(one, ReleaseCause.PREEMPTION if move == "preempt" else ReleaseCause.FINISH)
        cells.check()
    for slot in list(cells.live):
        cells.end(slot)
    cells.check()
    assert cells.kit.kv.pool.active_blocks == 0


def test_a_sequence_that_outgrows_its_window_holds_no_more_of_it() -> None:
    cells = Cells(FULL_AND_WINDOW, capacity=40)
    cells.admit(0, [1] * 10)
    for end in range(11, 60):
        assert cells.step({0: end})
        cells.check()
    assert (len(cells.table(0, 0)[0]), len(cells.table(0, 1)[0])) == (15, 3)
    assert cells.kit.kv.held_blocks(0) == 18
    assert int(cells.kit.slots.peak_blocks[0]) == 19
    cells.end(0)
    assert cells.kit.histogram("block_reference_lifetime", shared="false")[0] == 30


def test_sinks_stay_while_what_lies_between_them_and_the_window_leaves() -> None:
    cells = Cells(WINDOW_ALONE, 2, capacity=40)
    cells.admit(0, [1] * 8)
    sinks = cells.table(0, 0)[0]
    for end in range(9, 60):
        assert cells.step({0: end})
        cells.check()
    blocks, gap = cells.table(0, 0)
    assert (blocks[:2], len(blocks), gap) == (sinks, 4, 11)
    cells.end(0)


def test_a_prefix_whose_sinks_and_window_are_cached_is_shared() -> None:
    cells = Cells(WINDOW_ALONE, 2, capacity=40)
    prompt = [1] * 30
    cells.admit(0, prompt)
    cells.end(0)
    assert cells.admit(1, [*prompt, 2]) == 28
    # Of 31 tokens the last 7 lie in blocks 6 and 7; 0 and 1 are the sinks.
    assert (len(cells.table(1, 0)[0]), cells.table(1, 0)[1]) == (4, 4)
    cells.check()


def test_block_seconds_of_what_left_a_window_are_the_requests_own() -> None:
    cells = Cells(WINDOW_ALONE, caching=False)
    cells.admit(0, [1] * 8)
    cells.kit.clock.advance(3 * SECOND_NS)
    cells.step({0: 12})
    cells.kit.clock.advance(SECOND_NS)
    cells.end(0)
    # Two blocks for 3 s; then one of them has left, and two are held for 1 s.
    assert float(cells.kit.slots.block_seconds[0]) == pytest.approx(8.0)


def test_a_prefix_is_shared_once_every_window_of_it_is_there() -> None:
    cells = Cells(FULL_AND_WINDOW, capacity=40)
    prompt = [1] * 30
    cells.admit(0, prompt)
    cells.end(0)
    assert cells.admit(1, [*prompt, 2]) == 28
    assert (len(cells.table(1, 0)[0]), len(cells.table(1, 1)[0])) == (8, 3)
    cells.check()


def test_a_prefix_is_shared_no_further_than_its_last_whole_window() -> None:
    cells = Cells(FULL_AND_WINDOW, capacity=40)
    cells.admit(0, [1] * 24)
    cells.end(0)
    assert cells.admit(1, [1] * 12 + [5]) == 12
    kit = cells.kit
    # Request 1 keeps the first three blocks of both groups. Of the rest those of the window go first: they are lost.
    kit.ledger.begin()
    lost = kit.kv.pool.free_blocks + 3
    kit.kv.pool.take(lost, np.full(lost, 9, np.uint64), np.zeros(lost, np.int16))
    assert kit.kv.pool.cached_blocks == 3
    kit.seat(2)
    # All six blocks of full attention are there; the longest prefix whose window is ends with the third.
    assert kit.kv.match(2, np.array([1] * 24 + [3], np.int32), SALT) == 12
    kit.ledger.end()


def test_the_same_tokens_in_another_group_are_another_key() -> None:
    cells = Cells((0, 0))
    cells.admit(0, [1] * 8)
    hashes = cells.kit.blocks.prefix_hash[cells.kit.held(0)]
    assert len(set(hashes.tolist())) == 4


def test_groups_that_cannot_draw_on_one_pool_are_refused() -> None:
    unequal = replace(small_limits(), groups=(Group(block_size_tokens=4), Group(block_size_tokens=8)))
    with pytest.raises(BadConfig, match="groups of one pool need blocks of one size"):
        Windows(unequal, np.zeros(99, np.int32))
    with pytest.raises(BadConfig, match="put one of full attention first"):
        Windows(windowed_limits((8, 0)), np.zeros(99, np.int32))


@given(
    kind=st.sampled_from(WITH_SINKS),
    tokens=st.integers(1, 300),
    steps=st.lists(st.integers(1, 40), min_size=1),
)
def test_no_sequence_ever_holds_more_than_the_most(
    kind: tuple[tuple[int, ...], int], tokens: int, steps: list[int]
) -> None:
    windows, sinks = kind
    groups = windowed_limits(windows, sinks).groups
    most, computed, at = most_blocks(groups, tokens, max(steps)), 0, 0
    while computed < tokens:
        end = min(tokens, computed + steps[at % len(steps)])
        gaps = [max(0, max(0, computed - window) // SIZE - sinks) if window else 0 for window in windows]
        held = sum(-(-end // SIZE) - gap for gap in gaps)
        assert held <= most
        computed, at = end, at + 1
