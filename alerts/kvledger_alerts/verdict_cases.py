"""The promtool tests of what has limited an engine for long, and of what has only limited it for a while."""

from __future__ import annotations

from collections.abc import Mapping

from kvledger_alerts.cases import Case, Firing, Series, engine, quiet, silent, steady, warning
from kvledger_alerts.causes import COMPUTE_BOUND, POOL_BOUND, SCHEDULER_BOUND

MINUTE = 60
HOUR = 60


def _ruled(verdict: str, reasons: Mapping[str, str], verdicts: str = steady(1, HOUR)) -> tuple[Series, ...]:
    return (
        engine("verdict", verdicts, verdict=verdict),
        *(engine("verdict_reason", values, verdict_reason=reason) for reason, values in reasons.items()),
    )


def _bound(verdict: str, percent: str, reason: str) -> Firing:
    said = f" has been {verdict} nearly all the time, for {percent} of it because of {reason}."
    return warning(said, verdict_reason=reason)


def _peak(alert: str, verdict: str, reason: str) -> tuple[Case, ...]:
    values = f"{steady(0, 20)} {steady(1, 8)} {steady(0, 32)}"
    series = _ruled(verdict, {reason: values}, values)
    return quiet(alert, "25m 27m 30m 40m", {f"{verdict} for some minutes: a peak": series}, interval_seconds=MINUTE)


CASES = (
    Case(
        alert=POOL_BOUND,
        title="pool bound by long requests: after ten minutes that are nearly all so, and five more",
        series=_ruled("pool_bound", {"long_requests": steady(1, HOUR), "many_requests": steady(0, HOUR)}),
        moments={**silent("4m"), "20m": (_bound("pool bound", "100%", "long_requests"),)},
        interval_seconds=MINUTE,
    ),
    Case(
        alert=POOL_BOUND,
        title="pool bound by turns for two reasons: each is named",
        series=_ruled("pool_bound", {"one_tenant": " ".join(["1 0"] * 30), "many_requests": " ".join(["0 1"] * 30)}),
        moments={
            "20m": (_bound("pool bound", "45.45%", "many_requests"), _bound("pool bound", "54.55%", "one_tenant")),
        },
        interval_seconds=MINUTE,
    ),
    *quiet(
        POOL_BOUND,
        "20m 40m",
        {
            "a full pool that nobody waits for": _ruled(
                "healthy", {"full_use": steady(1, HOUR), "many_requests": steady(0, HOUR)}
            ),
            "pool bound in every second minute: it comes and goes": _ruled(
                "pool_bound", {"many_requests": " ".join(["1 0"] * 30)}, " ".join(["1 0"] * 30)
            ),
        },
        interval_seconds=MINUTE,
    ),
    *_peak(POOL_BOUND, "pool_bound", "overload"),
    Case(
        alert=SCHEDULER_BOUND,
        title="requests wait for a place in the batch all the time, while the pool has room",
        series=_ruled("scheduler_bound", {"batch_slots": steady(1, HOUR)}),
        moments={**silent("4m"), "20m": (_bound("scheduler bound", "100%", "batch_slots"),)},
        interval_seconds=MINUTE,
    ),
    *quiet(
        SCHEDULER_BOUND,
        "20m 40m",
        {
            "requests wait for the pool: more slots would not help them": _ruled(
                "pool_bound", {"many_requests": steady(1, HOUR), "batch_slots": steady(0, HOUR)}
            ),
        },
        interval_seconds=MINUTE,
    ),
    *_peak(SCHEDULER_BOUND, "scheduler_bound", "token_budget"),
    Case(
        alert=COMPUTE_BOUND,
        title="steps are the time, all the time",
        series=_ruled("compute_bound", {"compute": steady(1, HOUR)}),
        moments={**silent("4m"), "20m": (_bound("compute bound", "100%", "compute"),)},
        interval_seconds=MINUTE,
    ),
    *quiet(
        COMPUTE_BOUND,
        "20m 40m",
        {
            "a busy engine that keeps nobody waiting": _ruled(
                "healthy", {"light": steady(1, HOUR), "compute": steady(0, HOUR)}
            ),
        },
        interval_seconds=MINUTE,
    ),
    *_peak(COMPUTE_BOUND, "compute_bound", "compute"),
)
