"""A measurement in a process of its own: progress comes through, an answer is whole, a failure says why."""

from __future__ import annotations

import pytest

from bench.answers import ask
from bench.effort import Effort
from bench.errors import BenchError

MODULE = "tests.bench.answerer"


def test_the_child_is_asked_for_as_much_as_the_row_and_says_how_far_it_is() -> None:
    seen: list[tuple[int, int]] = []
    answer = ask(MODULE, Effort(quick=True, on_progress=lambda done, total: seen.append((done, total))))
    assert answer.figures["rounds"].tolist() == [0, 1, 2]
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert answer.facts == ("whole False", "seed 0")


def test_the_whole_is_asked_for_too() -> None:
    assert ask(MODULE, Effort(quick=False, whole=True)).facts[0] == "whole True"


def test_a_child_that_fails_is_no_measurement_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSWERER_FAILS", "1")
    with pytest.raises(BenchError, match=r"exit code 1 and no answer: .*the peer is broken"):
        ask(MODULE, Effort(quick=True))
