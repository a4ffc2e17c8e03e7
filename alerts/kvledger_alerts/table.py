"""What an alert is made of: the shape of the rows and the parameters that fill them. Knows no expression, no YAML."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from kvledger.families.histograms import WAIT_BUCKETS

IDENTITY = ("job", "instance", "engine", "rank")
"""What tells one engine core of one agent from another."""
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
        runbook_base: an alert's page is below this, by its name. By default where `kvledger monitor` and
            `kvledger runbook` serve it.
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
        wait_target_seconds, wait_count: P95 of the waits for one cause that is too long, and how many waits there must
            have been within `rate_seconds`.
        oldest_wait_seconds: age of a wait that is still open.
        thrash_ratio, thrash_count: tokens computed again per token generated, and preemptions within `rate_seconds`.
        release_target_seconds, release_count: P95 from the end of a cancelled request to its last block given back.
        finishing_seconds: age of a request that ended and still holds blocks.
        quota_ratio: share of its quota from which a tenant that waits is at it.
        hit_ratio, hit_drop_ratio, hit_tokens: a prefix cache that used to hit at this share at least, and now at less
            than this part of it, with as many tokens looked up within `rate_seconds`. What used to be is the last
            `baseline_seconds`.
        sharing_ratio: share of the pool in blocks that several live requests share.
        bound_seconds, bound_ratio, reason_ratio: a verdict that held for this share of the window, named by each reason
            that held for this part of it.
        ttft_target_seconds, ttft_objective: first tokens that are in time, and the share of requests that must have
            theirs in time. The target is a bound of the histogram's buckets.
        availability_objective: share of requests that are neither refused for want of room nor ended by the engine.
        slo_count: requests that the long window of a burn must hold.
        flap_seconds, flap_ratio: a source fails when fewer of its samples than this share succeed within the window.
        otlp_ratio: share of the exports that the endpoint did not take.
        family_seconds, known_seconds: a family is missing when nobody saw it for the first and somebody within the
            second.
        wait_hold_seconds, tenant_hold_seconds, cache_hold_seconds, telemetry_hold_seconds, source_hold_seconds,
            family_hold_seconds, idle_hold_seconds, release_hold_seconds, thrash_hold_seconds, bound_hold_seconds,
            never_fit_hold_seconds: of those.

    Raises ValueError for a `ttft_target_seconds` that no bucket ends at.
    """

    scale: Scale = field(default_factory=Scale)
    job: str = "kvledger"
    runbook_base: str = "http://127.0.0.1:9095/runbook/"
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
    wait_target_seconds: float = 5.0
    wait_count: int = 20
    oldest_wait_seconds: float = 60.0
    wait_hold_seconds: float = 300.0
    never_fit_hold_seconds: float = 60.0
    thrash_ratio: float = 0.5
    thrash_count: int = 10
    thrash_hold_seconds: float = 120.0
    release_target_seconds: float = 1.0
    release_count: int = 5
    finishing_seconds: float = 30.0
    release_hold_seconds: float = 120.0
    idle_hold_seconds: float = 300.0
    quota_ratio: float = 0.95
    tenant_hold_seconds: float = 300.0
    hit_ratio: float = 0.2
    hit_drop_ratio: float = 0.5
    hit_tokens: int = 10_000
    baseline_seconds: float = 6 * 3600.0
    cache_hold_seconds: float = 600.0
    sharing_ratio: float = 0.5
    bound_seconds: float = 600.0
    bound_ratio: float = 0.9
    reason_ratio: float = 0.3
    bound_hold_seconds: float = 300.0
    ttft_target_seconds: float = 2.5
    ttft_objective: float = 0.95
    availability_objective: float = 0.999
    slo_count: int = 50
    flap_seconds: float = 600.0
    flap_ratio: float = 0.8
    source_hold_seconds: float = 300.0
    otlp_ratio: float = 0.5
    telemetry_hold_seconds: float = 300.0
    family_seconds: float = 300.0
    known_seconds: float = 24 * 3600.0
    family_hold_seconds: float = 300.0

    def __post_init__(self) -> None:
        """Checks what an expression could not say."""
        if self.ttft_target_seconds not in WAIT_BUCKETS:
            raise ValueError(
                f"ttft_target_seconds={self.ttft_target_seconds}: give a bucket's bound, of {WAIT_BUCKETS}"
            )

    def rate_window(self) -> str:
        """The window of rates, scaled."""
        return self.scale.window(self.rate_seconds)

    def short_window(self) -> str:
        """The window over liveness gauges, scaled."""
        return self.scale.window(self.short_seconds)

    def long_window(self) -> str:
        """The window over pool gauges, scaled."""
        return self.scale.window(self.long_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRow:
    """A series that rules use more than once, or that has to exist for a window over it. Its window is in its name."""

    record: str
    expression: str


@dataclass(frozen=True, slots=True)
class Cause:
    """What explains an alert: nobody is told of it while another alert, at this severity if one is given, fires.

    `same` are the labels that both must have alike; `only` are matchers that the explained alert must meet.
    """

    alert: str
    severity: Severity | None = None
    same: tuple[str, ...] = IDENTITY
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """One alerting rule. `hold_seconds` is its `for`, unscaled; `summary` holds no variable, `description` does.

    Attributes:
        silent: the false alarm that this rule does not raise, as a sentence; its promtool cases prove it.
        labels: further labels, besides the severity.
        explained_by: the alerts while which nobody is told of this one.
    """

    name: str
    severity: Severity
    expression: str
    hold_seconds: float
    summary: str
    description: str
    silent: str
    labels: tuple[tuple[str, str], ...] = ()
    explained_by: tuple[Cause, ...] = ()


def duration_text(seconds: float) -> str:
    """Seconds as a Prometheus duration in its largest whole unit; below a millisecond it is `0s`."""
    ms = round(seconds * 1000)
    return next((f"{ms // size}{unit}" for unit, size in UNITS_MS if ms and ms % size == 0), "0s")


def runbook_url(name: str, base: str) -> str:
    """Where the page of an alert is: by its name, so that no rule can name another page."""
    return f"{base.rstrip('/')}/{name}"
