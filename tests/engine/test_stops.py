"""Stop tokens of a whole batch, against a dictionary of sets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvledger_engine.stops import StopTokens

SLOTS, TOKENS = st.integers(0, 5), st.integers(0, 9) | st.just(2**31 - 1)
CHANGES = st.lists(st.tuples(SLOTS, st.none() | st.lists(TOKENS, max_size=3)), max_size=12)


@given(CHANGES, st.lists(st.tuples(SLOTS, TOKENS), max_size=8))
def test_a_slot_is_ended_by_its_own_stop_tokens_and_by_no_others(
    changes: list[tuple[int, list[int] | None]], drawn: list[tuple[int, int]]
) -> None:
    stops, model = StopTokens(), dict[int, set[int]]()
    slots = np.array([slot for slot, _ in drawn], np.int32)
    tokens = np.array([token for _, token in drawn], np.int32)
    for slot, kept in changes:
        stops.forget(slot)
        model.pop(slot, None)
        if kept:
            stops.keep(np.array([slot], np.int32), kept)
            model[slot] = set(kept)
        wanted = [token in model.get(slot, ()) for slot, token in drawn]
        assert stops.drawn(slots, tokens).tolist() == wanted
        assert len(stops) == len(model)
