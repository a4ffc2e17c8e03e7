"""Sums over series, and sums and ratios of numbers of which some may not be known. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from kvledger_agent.observation import Series

Number = TypeVar("Number", int, float)


def by_first_label(series: Series) -> dict[str, float]:
    """Sums over everything but the first label."""
    sums: dict[str, float] = {}
    for labels, value in series.items():
        sums[labels[0]] = sums.get(labels[0], 0.0) + value
    return sums


def sum_if_known(values: Iterable[Number | None]) -> Number | None:
    """The sum of some numbers; None as soon as one is not known, and for none at all."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known[1:], known[0]) if known and len(known) == len(listed) else None


def over(part: float | None, whole: float | None) -> float | None:
    """A part by its whole; None where one is not known, or the whole is nothing."""
    return None if part is None or not whole else part / whole
