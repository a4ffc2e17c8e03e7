"""A bar with a goal beyond it: the bar is promised, the goal is only shown."""

from __future__ import annotations

from bench.estimate import Windows, estimate
from bench.result import Bar, Quantity, Sense


class Goal:
    """At least so many times; `stretch` is what is hoped for, None = no more than the bar."""

    def __init__(self, *, bar: float, stretch: float | None = None) -> None:
        self.bar = Bar(Sense.AT_LEAST, bar)
        self._stretch = stretch

    @property
    def text(self) -> str:
        """One sentence."""
        beyond = "" if self._stretch is None else f", the goal beyond it {self._stretch:g} ×"
        return f"The bar is {self.bar.limit:g} ×{beyond}."

    def reached(self, ratios: Windows) -> Quantity:
        """How much of the goal, or of the bar where there is none beyond it, the measured ratios are."""
        goal = self.bar.limit if self._stretch is None else self._stretch
        return Quantity(f"of the goal of {goal:g} ×", estimate(100 * ratios / goal), "%")
