"""What the agent knows after one round of sampling: every engine's observation and how each source did. Immutable.

The sampler replaces the whole object; exporters and the API read whichever one is current, without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvledger.clock import NS_PER_SECOND
from kvledger_agent.observation import Observation

INTERNAL_ERROR = "internal_error"
"""The status of a source whose reading failed by a fault of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceHealth:
    """How reading one source went. `status` is a word: a reader status, or why nothing could be read.

    `last_good_ns` is CLOCK_MONOTONIC of the last good sample, None before the first. Counters restart with the agent,
    but `overflows`, which is the ledger's own.
    """

    source: str
    path: str
    success: bool
    status: str
    error: str | None
    duration_seconds: float
    last_good_ns: int | None
    events_lost: int | None
    reads_retried: int | None
    overflows: int | None = None


def unreadable(health: Iterable[SourceHealth]) -> tuple[SourceHealth, ...]:
    """Sources without an observation."""
    return tuple(source for source in health if source.error is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One round: `sampled_ns` is CLOCK_MONOTONIC at its end. At most one observation per (engine, rank)."""

    round: int
    sampled_ns: int
    observations: tuple[Observation, ...]
    sources: tuple[SourceHealth, ...]

    def age_seconds(self, now_ns: int) -> float:
        """Age of the round at `now_ns` (CLOCK_MONOTONIC)."""
        return max(0.0, (now_ns - self.sampled_ns) / NS_PER_SECOND)
