"""The rows of the objectives: time to first token and availability, as burn rates over several windows.

A burn rate is how many times faster than allowed the budget of failures is used up: 1 uses it up exactly within its
period. Windows and factors are those of the SRE workbook, 14.4, 6, 3 and 1 (monitoring.mixins.dev, kubernetes-mixin).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvledger.words import FinishReason
from kvledger_alerts.causes import FULL, STUCK
from kvledger_alerts.pool_rows import ENGINE, PRESSURE_REASONS, words
from kvledger_alerts.table import AlertRow, Cause, Parameters, RecordingRow, Severity, duration_text

MINUTE, HOUR = 60.0, 3600.0
GOOD_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class Burn:
    """A factor, the two windows that must both burn at it, and how an alert about it is raised."""

    factor: float
    long_seconds: float
    short_seconds: float
    hold_seconds: float
    severity: Severity


BURNS = (
    Burn(14.4, HOUR, 5 * MINUTE, 2 * MINUTE, Severity.CRITICAL),
    Burn(6.0, 6 * HOUR, 30 * MINUTE, 15 * MINUTE, Severity.CRITICAL),
    Burn(3.0, 24 * HOUR, 2 * HOUR, HOUR, Severity.WARNING),
    Burn(1.0, 72 * HOUR, 6 * HOUR, 3 * HOUR, Severity.WARNING),
)
WINDOWS = tuple(sorted({seconds for burn in BURNS for seconds in (burn.long_seconds, burn.short_seconds)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """One objective: the share of failures over a window (a range as PromQL), and the requests it is the share of."""

    name: str
    record: str
    allowed: float
    failures: Callable[[str], str]
    volume: Callable[[str], str]
    summary: str
    said: str
    silent: str
    explained_by: tuple[Cause, ...]

    def recorded(self, seconds: float) -> str:
        """The name under which the share of failures over a window is recorded; the window is as it is unscaled."""
        return f"engine:{self.record}:ratio_rate{duration_text(seconds)}"


def recording_rows(p: Parameters) -> tuple[RecordingRow, ...]:
    """The share of failures of each objective over each window."""
    return tuple(
        RecordingRow(record=objective.recorded(seconds), expression=objective.failures(p.scale.window(seconds)))
        for objective in objectives(p)
        for seconds in WINDOWS
    )


def alert_rows(p: Parameters) -> tuple[AlertRow, ...]:
    """Each objective's burns, the fastest first."""
    return tuple(_burn(p, objective, burn) for objective in objectives(p) for burn in BURNS)


def objectives(p: Parameters) -> tuple[Objective, ...]:
    """The two objectives there are."""
    ended = "sum without (finish_reason, tenant) ({}(kvledger_requests_total{{{}}}[{}]))"
    refused = f'sum without (reason) ({{}}(kvledger_rejections_total{{{{reason=~"{words(PRESSURE_REASONS)}"}}}}[{{}}]))'
    good = f'finish_reason=~"{"|".join(reason.word for reason in GOOD_ENDS)}"'
    counted = f'finish_reason!="{FinishReason.CANCELLED.word}"'

    def decided(function: str, window: str) -> str:
        return f"({refused.format(function, window)}\n + {ended.format(function, counted, window)})"

    def late(window: str) -> str:
        first = "kvledger_time_to_first_token_seconds"
        in_time = f"sum without (class, le) (rate({first}_bucket{{{_le(p.ttft_target_seconds)}}}[{window}]))"
        return f"1 - {in_time}\n/ (sum without (class) (rate({first}_count[{window}])) > 0)"

    return (
        Objective(
            name="KvledgerTtftSloBurn",
            record="kvledger_ttft_late",
            allowed=1 - p.ttft_objective,
            failures=late,
            volume=lambda w: f"sum without (class) (increase(kvledger_time_to_first_token_seconds_count[{w}]))",
            summary="First tokens come too late for the objective",
            said=f"of the first tokens came later than {p.ttft_target_seconds:g} s",
            silent="a night with a handful of slow requests, and a peak that is over",
            explained_by=(*STUCK, FULL),
        ),
        Objective(
            name="KvledgerAvailabilitySloBurn",
            record="kvledger_requests_failed",
            allowed=1 - p.availability_objective,
            failures=lambda w: f"1 - {ended.format('rate', good, w)}\n/ ({decided('rate', w)} > 0)",
            volume=lambda w: decided("increase", w),
            summary="Requests are refused for want of room or ended by the engine, more than the objective allows",
            said="of the requests were refused for want of room or ended by the engine",
            silent="requests that their clients cancelled or got wrong, and one error in a quiet night",
            explained_by=STUCK,
        ),
    )


def _burn(p: Parameters, objective: Objective, burn: Burn) -> AlertRow:
    limit = f"{burn.factor * objective.allowed:.4g}"
    windows = (burn.long_seconds, burn.short_seconds)
    burning = "\nand ".join(f"{objective.recorded(seconds)} > {limit}" for seconds in windows)
    long = duration_text(burn.long_seconds)
    return AlertRow(
        name=objective.name,
        severity=burn.severity,
        expression=f"{burning}\nand {objective.volume(p.scale.window(burn.long_seconds))} >= {p.slo_count}",
        hold_seconds=burn.hold_seconds,
        summary=objective.summary,
        description=f"Engine {ENGINE}: {{{{ $value | humanizePercentage }}}} {objective.said} in the last {long}. "
        f"At {limit} the budget is used up {burn.factor:g} times as fast as allowed.",
        silent=objective.silent,
        labels=(("window", long),),
        explained_by=objective.explained_by,
    )


def _le(bound: float) -> str:
    """The matcher of a bucket's bound: Prometheus 3 writes a whole number with a decimal, 2 as it was exposed."""
    return f'le=~"{bound:g}([.]0)?"' if bound.is_integer() else f'le="{bound:g}"'
