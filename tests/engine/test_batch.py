"""Rows of a step and the positions they compute."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvledger_engine.batch import Rows, ragged_positions


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9))))
def test_positions_run_through_every_row(rows: list[tuple[int, int]]) -> None:
    starts, counts = (np.array([row[i] for row in rows], np.int32) for i in range(2))
    expected = [start + i for start, count in rows for i in range(count)]
    assert ragged_positions(starts, counts).tolist() == expected


def test_rows_are_added_and_taken_away_by_slot() -> None:
    rows = Rows.none().plus([(3, 0, 4, 9), (5, 8, 1, 9)])
    assert rows.ends.tolist() == [4, 9]
    assert rows.total_tokens == 5
    left = rows.without(np.array([3], np.int32))
    assert left.slots.tolist() == [5]
    assert left.plus([]) is left
