"""The choice of a victim, as a pure function."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvledger.words import RequestClass
from kvledger_engine.preemption import PRIORITY, order_of_sacrifice


@given(st.lists(st.tuples(st.sampled_from(list(RequestClass)), st.integers(1, 1 << 63)), unique_by=lambda x: x[1]))
def test_the_lowest_priority_goes_first_and_among_equals_the_latest_arrival(
    running: list[tuple[RequestClass, int]],
) -> None:
    classes = np.array([kind for kind, _ in running], np.uint8)
    serials = np.array([serial for _, serial in running], np.uint64)
    order = order_of_sacrifice(classes, serials).tolist()
    assert order == sorted(range(len(running)), key=lambda i: (PRIORITY[classes[i]], -int(serials[i])))


def test_interactive_requests_outlast_default_ones_and_those_outlast_batch() -> None:
    classes = np.array([RequestClass.INTERACTIVE, RequestClass.BATCH, RequestClass.DEFAULT], np.uint8)
    assert order_of_sacrifice(classes, np.array([1, 2, 3], np.uint64)).tolist() == [1, 2, 0]
