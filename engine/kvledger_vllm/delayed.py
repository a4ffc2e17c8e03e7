"""Observations that every step makes, counted together once a second: one by one they cost much of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

EVERY_NS = 1_000_000_000

Value = TypeVar("Value")


class Delayed:
    """What was observed and is not in the ledger's histograms yet: a second's at most, nothing of an idle engine."""

    def __init__(self) -> None:
        self._kinds: list[Callable[[], None]] = []
        self._since_ns = 0

    def of(self, count: Callable[[Value], None]) -> Callable[[Value], None]:
        """A function that takes a value now and gives it to `count` later."""
        values: list[Value] = []

        def flush() -> None:
            for value in values:
                count(value)
            values.clear()

        self._kinds.append(flush)
        return values.append

    def flush(self, now_ns: int, *, idle: bool) -> None:
        """Count everything if it is time, or if the engine has nothing to do. Ledger time."""
        if idle or now_ns - self._since_ns >= EVERY_NS:
            self._since_ns = now_ns
            for flush in self._kinds:
                flush()
