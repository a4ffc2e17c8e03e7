"""The two clocks a ledger can run on: the machine's, and a virtual one that a driver advances."""

from __future__ import annotations

import time
from typing import Protocol

NS_PER_SECOND = 1_000_000_000


class Clock(Protocol):
    """What the engine asks for time. `virtual` is recorded in the ledger's header."""

    virtual: bool

    def now_ns(self) -> int:
        """Monotonic nanoseconds: the ledger clock."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch."""


class RealClock:
    """`now_ns` is CLOCK_MONOTONIC, `wall_ns` the wall clock since the Unix epoch, nanoseconds both."""

    virtual = False
    # The machine's own functions: a call in between costs a publication several times what the clock does.
    now_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)


class VirtualClock:
    """A clock that stands still until `advance` is called; its wall clock starts at the virtual epoch, not today."""

    virtual = True

    def __init__(self, start_ns: int = NS_PER_SECOND) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        """Virtual nanoseconds."""
        return self._now_ns

    def wall_ns(self) -> int:
        """Virtual nanoseconds: a virtual ledger has no wall time of its own."""
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        """Move time forward by `delta_ns` >= 0 nanoseconds."""
        if delta_ns < 0:
            raise ValueError(f"delta_ns={delta_ns}: a clock does not go back")
        self._now_ns += delta_ns
