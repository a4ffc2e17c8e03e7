"""Windows in turns: whatever drifts hits every contender alike."""

from __future__ import annotations

import time

from bench.effort import Effort
from bench.interleave import interleave, per_call


def test_windows_are_taken_in_turns_and_kept_by_name() -> None:
    order: list[str] = []

    def window(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = interleave(range(3), {"a": lambda: window("a"), "b": lambda: window("b")})
    assert order == ["a", "b"] * 3
    assert {name: figures.tolist() for name, figures in found.items()} == {"a": [1, 3, 5], "b": [2, 4, 6]}


def test_a_window_of_calls_gives_microseconds_per_call() -> None:
    calls: list[int] = []

    def work() -> None:
        calls.append(1)
        until = time.perf_counter_ns() + 200_000
        while time.perf_counter_ns() < until:
            pass

    assert per_call(work, 5)() >= 200
    assert len(calls) == 5


def test_quick_runs_do_fewer_rounds_and_every_round_is_reported() -> None:
    seen: list[tuple[int, int]] = []
    quick = Effort(quick=True, on_progress=lambda done, total: seen.append((done, total)))
    assert list(quick.rounds(full=100, quick=2)) == [0, 1]
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert len(list(Effort(quick=False).rounds(full=100, quick=2))) == 100
