"""What a number given by a person has to be, wherever it is given: in a flag, a variable or a query."""

from __future__ import annotations

from kvledger_agent.errors import UsageError

MOST = 1e9
"""As seconds, 31 years: beyond it clocks, sleeps and nanoseconds in 64 bits overflow."""


def above_zero(name: str, value: float, *, most: float = MOST) -> float:
    """`value`. Raises `UsageError`, naming it, for what is not above 0, above `most`, or no number."""
    if not 0 < value <= most:
        raise UsageError(f"{name}={value:g}: use a number above 0, up to {most:,.0f}")
    return value


def zero_or_more(name: str, value: float, *, most: float = MOST) -> float:
    """`value`. Raises `UsageError`, naming it, for what is below 0, above `most`, or no number."""
    if not 0 <= value <= most:
        raise UsageError(f"{name}={value:g}: use 0 or more, up to {most:,.0f}")
    return value
