"""What a row hands over: a measured ratio or share, the bar it is held against, and the quantities behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bench.estimate import Estimate


class Sense(StrEnum):
    """Which side of a bar is good."""

    AT_MOST = "≤"
    AT_LEAST = "≥"


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise. It is kept when the whole confidence interval is on its good side: luck does not count."""

    sense: Sense
    limit: float

    def met(self, estimate: Estimate) -> bool:
        """Whether the estimate keeps the promise."""
        if self.sense is Sense.AT_MOST:
            return estimate.high <= self.limit
        return estimate.low >= self.limit


@dataclass(frozen=True, slots=True)
class Quantity:
    """One of the measured things a ratio is made of."""

    name: str
    estimate: Estimate
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One line of the table. `name` is what was measured, `unit` one of `%`, `×`, `µs`, `ms`, `tokens/s`.

    `how` says in a few sentences what ran; `facts` are counts of this run that belong to the figure.
    """

    row: str
    name: str
    estimate: Estimate
    unit: str
    how: str
    bar: Bar | None = None
    quantities: tuple[Quantity, ...] = ()
    facts: tuple[str, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        return None if self.bar is None else self.bar.met(self.estimate)


def missed(results: list[Result]) -> list[Result]:
    """The results whose bar is not met."""
    return [result for result in results if result.met is False]
