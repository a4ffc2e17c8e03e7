"""The rows of the verdict: what has limited an engine for long, named by the reason that decides what to do."""

from __future__ import annotations

from kvledger.reasons import ROWS
from kvledger.words import Verdict
from kvledger_alerts.causes import COMPUTE_BOUND, FULL_OR_NEARLY, POOL_BOUND, SCHEDULER_BOUND, STUCK
from kvledger_alerts.pool_rows import ENGINE
from kvledger_alerts.table import AlertRow, Cause, Parameters, Severity


def alert_rows(p: Parameters) -> tuple[AlertRow, ...]:
    """One alert per verdict that says what is short."""
    return (
        _bound(
            p,
            POOL_BOUND,
            Verdict.POOL_BOUND,
            "The pool has been what limits an engine for long",
            silent="a peak of some minutes, and a full pool that nobody waits for",
            explained_by=(*STUCK, FULL_OR_NEARLY),
        ),
        _bound(
            p,
            SCHEDULER_BOUND,
            Verdict.SCHEDULER_BOUND,
            "A limit of the scheduler has held requests back for long, while the pool has room",
            silent="requests that wait for the pool: more slots would not help them",
            explained_by=STUCK,
        ),
        _bound(
            p,
            COMPUTE_BOUND,
            Verdict.COMPUTE_BOUND,
            "The compute has been what limits an engine for long, while the pool has room",
            silent="a busy engine that keeps nobody waiting",
            explained_by=STUCK,
        ),
    )


def _bound(
    p: Parameters, name: str, verdict: Verdict, summary: str, *, silent: str, explained_by: tuple[Cause, ...]
) -> AlertRow:
    window = p.scale.window(p.bound_seconds)
    reasons = "|".join(row.reason.word for row in ROWS if row.verdict is verdict)
    operator = "=~" if "|" in reasons else "="
    return AlertRow(
        name=name,
        severity=Severity.WARNING,
        expression=f'avg_over_time(kvledger_verdict_reason{{verdict_reason{operator}"{reasons}"}}[{window}])'
        f" >= {p.reason_ratio}\n"
        "and ignoring (verdict_reason, verdict) "
        f'avg_over_time(kvledger_verdict{{verdict="{verdict.word}"}}[{window}]) > {p.bound_ratio}',
        hold_seconds=p.bound_hold_seconds,
        summary=summary,
        description=f"Engine {ENGINE} has been {verdict.word.replace('_', ' ')} nearly all the time, for "
        "{{ $value | humanizePercentage }} of it because of {{ $labels.verdict_reason }}.",
        silent=silent,
        explained_by=explained_by,
    )
