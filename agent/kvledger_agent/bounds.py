"""What a number given by a person has to be, wherever it is given: in a flag, a variable or a query."""

from __future__ import annotations

from kvledger_agent.errors import UsageError

MOST = 1_000_000_000
"""As seconds, 31 years: beyond it clocks, sleeps and nanoseconds in 64 bits overflow."""
_MOST_SHOWN = 40


def above_zero(name: str, value: float, *, most: int = MOST) -> float:
    """`value`. Raises `UsageError`, naming it, for what is not above 0, above `most`, or no number."""
    if not 0 < value <= most:
        raise UsageError(f"{name}={_shown(value)}: use a number above 0, up to {most:,}")
    return value


def zero_or_more(name: str, value: float, *, most: int = MOST) -> float:
    """`value`. Raises `UsageError`, naming it, for what is below 0, above `most`, or no number."""
    if not 0 <= value <= most:
        raise UsageError(f"{name}={_shown(value)}: use 0 or more, up to {most:,}")
    return value


def _shown(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)[:_MOST_SHOWN]
