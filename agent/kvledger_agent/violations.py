"""Count identities over time: which of them are off for longer than the grace. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.clock import NS_PER_SECOND
from kvledger_agent.grace import Grace, GraceClock

ALWAYS_JUDGED = ("capacity",)
WHEN_QUIET = ("free", "cached", "active", "state", "index")
"""Recounts, which only an audit of an engine between two publications can judge."""


class ViolationTracker:
    """How far each identity is lastingly off; 0 for one that holds or that has not been off for long."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}
        self.lasting: dict[str, float] = dict.fromkeys((*ALWAYS_JUDGED, *WHEN_QUIET), 0.0)

    @property
    def undecided(self) -> int:
        """Identities that are off, but not lastingly yet."""
        return sum(not self.lasting[name] for name in self._since)

    def update(
        self, off: Mapping[str, int], *, quiet: bool, clock: GraceClock, grace: Grace, final: bool = False
    ) -> None:
        """Take in the differences of one sample. `quiet` says that the recounts could be judged, too."""
        for name in {*ALWAYS_JUDGED, *(WHEN_QUIET if quiet else ()), *off}:
            if name not in off:
                self._since.pop(name, None)
                self.lasting[name] = 0.0
                continue
            began_ns, began_samples = self._since.setdefault(name, (clock.elapsed_ns, clock.samples))
            lasted = (clock.elapsed_ns - began_ns) / NS_PER_SECOND >= grace.seconds
            if final or (lasted and clock.samples - began_samples >= grace.samples):
                self.lasting[name] = float(off[name])
