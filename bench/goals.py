"""A bar with a goal beyond it: the bar is promised, the goal is only shown."""

from __future__ import annotations

from bench.estimate import Windows, estimate
from bench.result import Bar, Quantity, Sense


class Goal:
    """At least so many times; `stretch` is what is hoped for."""

    def __init__(self, *, bar: float, stretch: float) -> None:
        self.bar = Bar(Sense.AT_LEAST, bar)
        self._stretch = stretch

    @property
    def text(self) -> str:
        """One sentence."""
        return f"The bar is {self.bar.limit:g} ×, the goal beyond it {self._stretch:g} ×."

    def reached(self, ratios: Windows) -> Quantity:
        """How much of the goal the measured ratios are."""
        return Quantity(f"of the goal of {self._stretch:g} ×", estimate(100 * ratios / self._stretch), "%")
