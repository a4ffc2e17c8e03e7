"""What an alert is made of: the shape of the rows and the parameters that fill them. Knows no expression, no YAML."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

UNITS_MS = (("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


class Severity(StrEnum):
    """How an alert reaches people: `critical` wakes somebody, `warning` can wait for the morning."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How every window, `for` and interval is stretched. Tests shrink minutes to seconds with it.

    `floor_seconds`: no window gets shorter than this; a window needs two scrapes to mean anything.
    Raises ValueError for a factor that is not positive and finite.
    """

    factor: float = 1.0
    floor_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Checks the factor."""
        if not (0 < self.factor < math.inf):
            raise ValueError(f"scale factor {self.factor}: give a finite number above 0")

    def window(self, seconds: float) -> str:
        """A range such as `2m`, never below the floor."""
        return duration_text(max(self.floor_seconds, seconds * self.factor))

    def scrape(self, seconds: float) -> str:
        """An interval between scrapes such as `5s`; never below a third of the floor, so that a window holds three."""
        return duration_text(max(self.floor_seconds / 3, seconds * self.factor))

    def hold(self, seconds: float) -> str:
        """A `for` such as `1m`; `0s` stays `0s`."""
        return duration_text(seconds * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Everything an operator may want to set. Thresholds are ratios (0 to 1), seconds, or counts within a window.

    Windows and holds are as they are before `scale` stretches them. A hold is an alert's `for`.

    Attributes:
        job: the scrape job of the agents, as in `up{job}`.
        runbook_base: an alert's page is at this plus its name.
        short_seconds: window over liveness gauges and predictions, so that one failed scrape changes nothing.
        long_seconds: window over pool gauges, pressure and findings.
        rate_seconds: window of the rates of refusals.
        critical_ratio: share of active blocks at which a pool under pressure is critical. A warning comes at the
            engine's own `kvledger_pool_alert_watermark_ratio`.
        exhaustion_seconds, headroom_ratio: a pool is about to run out when both are undercut.
        leaked_ratio: share of the pool that may be leaked before that is critical.
        rejection_ratio, rejection_count: refusals of one reason matter from this share and this number on.
        pressure_hold_seconds: of the high watermark, warning and critical.
        exhaustion_hold_seconds: of the prediction. Longer than the minute over which the agent measures growth: a ramp
            that has ended predicts nothing.
        finding_hold_seconds: of leaks and corruption. 0, since the agent has waited for its grace already.
        liveness_hold_seconds: of stalled, frozen, down, and a ledger that cannot be read.
        rejection_hold_seconds, agent_hold_seconds: of refusals, and of an agent that is absent.
    """

    scale: Scale = field(default_factory=Scale)
    job: str = "kvledger"
    runbook_base: str = "https://kvledger.example/runbook/"
    interval_seconds: float = 15.0
    short_seconds: float = 60.0
    long_seconds: float = 120.0
    rate_seconds: float = 300.0
    critical_ratio: float = 0.98
    exhaustion_seconds: float = 300.0
    headroom_ratio: float = 0.3
    leaked_ratio: float = 0.1
    rejection_ratio: float = 0.05
    rejection_count: int = 10
    pressure_hold_seconds: float = 300.0
    exhaustion_hold_seconds: float = 120.0
    finding_hold_seconds: float = 0.0
    liveness_hold_seconds: float = 60.0
    rejection_hold_seconds: float = 120.0
    agent_hold_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRow:
    """A series that rules use more than once, or that has to exist for a window over it."""

    record: str
    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """One alerting rule. `hold_seconds` is its `for`, unscaled; `summary` holds no variable, `description` does."""

    name: str
    severity: Severity
    expression: str
    hold_seconds: float
    summary: str
    description: str


def duration_text(seconds: float) -> str:
    """Seconds as a Prometheus duration in its largest whole unit; below a millisecond it is `0s`."""
    ms = round(seconds * 1000)
    return next((f"{ms // size}{unit}" for unit, size in UNITS_MS if ms and ms % size == 0), "0s")


def runbook_url(name: str, base: str) -> str:
    """Where the page of an alert is: by its name, so that no rule can name another page."""
    return base + name
