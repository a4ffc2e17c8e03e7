"""Time that counts towards a grace: the ledger's own, and only while the engine works or is idle. Pure.

A hang, a SIGSTOP or a step that takes minutes adds nothing, so that none of them can turn a suspicion into a finding.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.snapshot import Sample
from kvledger.status import FROZEN_AFTER_STEPS, ReadStatus, step_p99_seconds

MIN_SECONDS = 2.0
SAMPLES = 3


@dataclass(frozen=True, slots=True)
class Grace:
    """How long a suspicion must last: counted time, and samples taken while time counted."""

    seconds: float
    samples: int = SAMPLES


def grace_of(sample: Sample) -> Grace:
    """max(2 s, 20 × p99 step) of counted time, and three samples."""
    return Grace(max(MIN_SECONDS, FROZEN_AFTER_STEPS * step_p99_seconds(sample.stats)))


class GraceClock:
    """Counted nanoseconds and counted samples since the first one.

    Between two publications the difference of their ledger clocks counts, unless the engine was frozen in between; on
    an engine that is idle while its lock is held, CLOCK_MONOTONIC counts; otherwise nothing does.
    """

    __slots__ = ("_frozen", "_published_seq", "_reached_ns", "elapsed_ns", "samples")

    def __init__(self) -> None:
        self.elapsed_ns = 0
        self.samples = 0
        self._published_seq: int | None = None
        self._reached_ns = 0
        self._frozen = False

    def tick(self, sample: Sample) -> None:
        """Take note of one sample."""
        published = self._published_seq is None or sample.published_seq != self._published_seq
        idle = sample.status is ReadStatus.IDLE
        reached_ns = sample.now_ns if idle else sample.clock_ns if published else self._reached_ns
        counted_ns = reached_ns - self._reached_ns
        if published or (idle and counted_ns > 0):
            self.samples += 1
            if self._published_seq is not None and not self._frozen:
                self.elapsed_ns += max(0, counted_ns)
        self._reached_ns = max(reached_ns, self._reached_ns)
        self._published_seq = sample.published_seq
        self._frozen = sample.status is ReadStatus.FROZEN
