"""The last minute of a few numbers, by the ledger's own clock: growth and rates. Never asks what time it is."""

from __future__ import annotations

from collections import deque

from kvledger.clock import NS_PER_SECOND

SPAN_NS = 60 * NS_PER_SECOND
MIN_SPAN_NS = 10 * NS_PER_SECOND


class Window:
    """Points (clock, value) of the last `span_ns`, one point older kept so that the span is covered.

    A clock that goes back starts the window anew: it belongs to another engine start.
    """

    __slots__ = ("_points", "_span_ns")

    def __init__(self, span_ns: int = SPAN_NS) -> None:
        self._span_ns = span_ns
        self._points: deque[tuple[int, float]] = deque()

    def add(self, clock_ns: int, value: float) -> None:
        """Note `value` at `clock_ns`; a second value of the same instant replaces the first."""
        points = self._points
        if points and clock_ns < points[-1][0]:
            points.clear()
        if points and clock_ns == points[-1][0]:
            points.pop()
        points.append((clock_ns, value))
        while len(points) > 2 and points[1][0] <= clock_ns - self._span_ns:
            points.popleft()

    def growth_per_second(self) -> float | None:
        """Net growth over the window per second; None while the window spans less than ten seconds."""
        if len(self._points) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._points[0], self._points[-1]
        if last_ns - first_ns < MIN_SPAN_NS:
            return None
        return (last - first) / ((last_ns - first_ns) / NS_PER_SECOND)
