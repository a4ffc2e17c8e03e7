"""Hysteresis: a changed ruling is told once it has held for a part of the window. Pure but for what it remembers."""

from __future__ import annotations

from kvledger.clock import NS_PER_SECOND
from kvledger.words import Reason
from kvledger_agent.verdict.rulings import Ruling

AT_ONCE = frozenset({Reason.LEAK, Reason.NO_PROGRESS, Reason.NO_HEARTBEAT, Reason.MISSING_SIGNALS})
"""What is true at once when it comes, and over at once when it goes."""
HOLD_PART = 1 / 6


class Steady:
    """The ruling in force, and the one that may replace it. Evidence is always the newest of its reason."""

    def __init__(self, window_seconds: float) -> None:
        self._hold_ns = round(HOLD_PART * window_seconds * NS_PER_SECOND)
        self._ruling: Ruling | None = None
        self._candidate: tuple[Reason, int] | None = None

    def update(self, ruling: Ruling, clock_ns: int) -> Ruling:
        """Take in the newest ruling. Returns the one in force."""
        before = self._ruling
        if before is None or before.reason is ruling.reason or AT_ONCE & {before.reason, ruling.reason}:
            self._ruling, self._candidate = ruling, None
            return ruling
        if self._candidate is None or self._candidate[0] is not ruling.reason or clock_ns < self._candidate[1]:
            self._candidate = ruling.reason, clock_ns
        if clock_ns - self._candidate[1] >= self._hold_ns:
            self._ruling, self._candidate = ruling, None
            return ruling
        return before
