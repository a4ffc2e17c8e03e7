"""What a ledger says of its engine: live, idle, frozen, closed, dead or abandoned. Pure; reads nothing itself."""

from __future__ import annotations

from enum import StrEnum

from kvledger.errors import (
    LedgerUnreadable,
    NotALedger,
    NotPermitted,
    OtherVersion,
    SameProcess,
    Truncated,
)
from kvledger.statsview import StatsView
from kvledger.words import StepPhase

FROZEN_AFTER_SECONDS = 3.0
FROZEN_AFTER_STEPS = 20


class ReadStatus(StrEnum):
    """What came of reading a ledger. The first six are states of its engine.

    RECORDED is a recording, whatever the state of the engine was then; LAST_GOOD marks an older sample.
    """

    OK = "ok"
    IDLE = "idle"
    FROZEN = "frozen"
    CLOSED = "closed"
    DEAD = "dead"
    ABANDONED = "abandoned"
    RECORDED = "recorded"
    LAST_GOOD = "last_good"
    OTHER_VERSION = "other_version"
    NOT_A_LEDGER = "not_a_ledger"
    TRUNCATED = "truncated"
    NOT_PERMITTED = "not_permitted"


def status_of(
    *,
    abandoned: bool,
    closed: bool,
    locked: bool,
    idle: bool,
    heartbeat_age_seconds: float | None,
    frozen_after_seconds: float,
) -> ReadStatus:
    """The state of the engine behind a readable ledger.

    A superseded ledger is ABANDONED however it ended: its counters live on in its successor. An idle engine runs no
    code and so has no heartbeat; it is IDLE while its lock is held. A heartbeat of unknown age never means FROZEN.
    """
    if abandoned:
        return ReadStatus.ABANDONED
    if closed:
        return ReadStatus.CLOSED
    if not locked:
        return ReadStatus.DEAD
    if idle:
        return ReadStatus.IDLE
    if heartbeat_age_seconds is not None and heartbeat_age_seconds > frozen_after_seconds:
        return ReadStatus.FROZEN
    return ReadStatus.OK


def step_p99_seconds(stats: StatsView) -> float:
    """An upper bound of the 99th percentile of a step's time: the sum over its phases of theirs; 0 without steps."""
    phases = (stats.histogram("step", phase=word) for word in StepPhase.words())
    bounds = (phase.quantile_bound(0.99) for phase in phases if phase is not None)
    return sum(bound for bound in bounds if bound is not None)


def frozen_after_seconds(stats: StatsView) -> float:
    """The heartbeat age at which an engine that is not idle counts as frozen: max(3 s, 20 × p99 step)."""
    return max(FROZEN_AFTER_SECONDS, FROZEN_AFTER_STEPS * step_p99_seconds(stats))


def status_of_error(error: LedgerUnreadable | OSError) -> ReadStatus:
    """The status under which a ledger that could not be read is listed."""
    if isinstance(error, OtherVersion):
        return ReadStatus.OTHER_VERSION
    if isinstance(error, Truncated):
        return ReadStatus.TRUNCATED
    if isinstance(error, NotPermitted | PermissionError | SameProcess):
        return ReadStatus.NOT_PERMITTED
    if isinstance(error, NotALedger | OSError):
        return ReadStatus.NOT_A_LEDGER
    return ReadStatus.LAST_GOOD
