"""Stop strings, against a reference that reads one character at a time, however the text is divided."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_engine.textstop import TextStop

TEXT = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the stop string that is complete first, and whether there is one."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(TEXT, STOPS, st.lists(st.integers(0, 30), max_size=8))
def test_the_text_ends_before_the_first_stop_string_wherever_it_is_divided(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    stop, came = TextStop(stops), ""
    bounds = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for start, end in pairwise(bounds):
        came += stop.feed(text[start:end])
        # What is out is never taken back.
        assert reference(text, stops)[0].startswith(came)
    stopped = stop.stopped
    came += "" if stopped else stop.end()
    assert (came, stopped) == reference(text, stops)


@pytest.mark.parametrize(("text", "out"), [("x", "x"), ("xE", "x"), ("EN", ""), ("ENx", "ENx"), ("EEN", "E")])
def test_only_the_beginning_of_a_stop_string_is_held_back(text: str, out: str) -> None:
    assert TextStop(["END"]).feed(text) == out
