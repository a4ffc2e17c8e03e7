"""Windows taken in turns, A B A B …, in one process, so that whatever drifts hits all contenders alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from bench.estimate import Windows

Window = Callable[[], float]
"""One window of one contender: does its work and returns the figure it measured."""

_NS_PER_MICROSECOND = 1e3


def interleave(rounds: Iterable[int], contenders: Mapping[str, Window], *, swap: bool = False) -> dict[str, Windows]:
    """One window of every contender per round, in the order given; the figures by name, float[rounds].

    `swap`: every other round in the opposite order, for differences so small that who comes first matters.
    """
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in rounds:
        for name in order:
            figures[name].append(contenders[name]())
        if swap:
            order.reverse()
    return {name: np.array(values) for name, values in figures.items()}


def per_call(work: Callable[[], object], calls: int, *, clock_ns: Callable[[], int] = time.perf_counter_ns) -> Window:
    """A window of so many calls in a row; its figure is microseconds per call, of wall time or another clock's."""

    def window() -> float:
        started_ns = clock_ns()
        for _ in range(calls):
            work()
        return (clock_ns() - started_ns) / calls / _NS_PER_MICROSECOND

    return window
