"""The ledger clock of a mirror: as of the message that is being applied, whenever that is."""

from __future__ import annotations

import time


class MessageClock:
    """The ledger clock of a mirror: the time of the message that is being applied."""

    virtual = False

    def __init__(self, now_ns: int) -> None:
        self._now_ns = now_ns

    def set(self, now_ns: int) -> None:
        """CLOCK_MONOTONIC nanoseconds."""
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """The message's time."""
        return self._now_ns

    def wall_ns(self) -> int:
        """The wall clock at the message's time."""
        return time.time_ns() - time.monotonic_ns() + self._now_ns
