"""The rows of an engine's own state: blocks that nobody gets back, content in doubt, an engine that does not move."""

from __future__ import annotations

from kvledger.words import LEDGER_KINDS, CancelCause, FindingKind, ReleaseCause
from kvledger_alerts.causes import CORRUPTION, DEAD, DOWN, GONE, LEAK, STUCK
from kvledger_alerts.pool_rows import ACTIVE, ENGINE
from kvledger_alerts.table import AlertRow, Cause, Parameters, Severity

LEAK_KINDS = (
    FindingKind.EXCESS_REFERENCE,
    FindingKind.LOST_BLOCK,
    FindingKind.PIN_OVERDUE,
    FindingKind.FINISHING_OVERDUE,
    FindingKind.USAGE_OUT_OF_RANGE,
)
"""Blocks that nobody gets back. A ledger's other kinds are worse: content may be wrong.

A page's other symptoms are told as its verdict, by KvledgerEngineStalled and KvledgerEngineFrozen.
"""
CORRUPTION_KINDS = tuple(kind for kind in LEDGER_KINDS if kind not in LEAK_KINDS)
CUT_SHORT = (*(cause.word for cause in CancelCause), ReleaseCause.TIMEOUT.word)
"""Ends that somebody outside asked for: the request's blocks are wanted back at once."""


def alert_rows(p: Parameters) -> tuple[AlertRow, ...]:
    """The alerts of an engine's own state."""
    return (
        *_leak(p),
        _corruption(p),
        _invariant(p),
        _idle_hold(p),
        _release(p),
        _stuck(p, "Stalled", "An engine takes steps, but none of its requests moves"),
        _stuck(p, "Frozen", "An engine has work and has stopped taking steps"),
        _down(p),
    )


def _leak(p: Parameters) -> tuple[AlertRow, AlertRow]:
    window = p.long_window()
    summary = "Blocks are held by nobody and do not come back"
    silent = "pins within their lease, and a pool full of live requests"
    return (
        AlertRow(
            name=LEAK,
            severity=Severity.WARNING,
            expression=f'max_over_time(kvledger_findings{{kind=~"{_kinds(LEAK_KINDS)}"}}[{window}]) > 0',
            hold_seconds=p.finding_hold_seconds,
            summary=summary,
            description=f"Engine {ENGINE}: {{{{ $value }}}} open findings of kind {{{{ $labels.kind }}}}.",
            silent=silent,
        ),
        AlertRow(
            name=LEAK,
            severity=Severity.CRITICAL,
            expression=f"max_over_time(kvledger_pool_leaked_blocks[{window}])\n"
            f"/ (max_over_time(kvledger_pool_capacity_blocks[{window}]) > 0) > {p.leaked_ratio}",
            hold_seconds=p.finding_hold_seconds,
            summary=summary,
            description=f"Engine {ENGINE}: {{{{ $value | humanizePercentage }}}} of pool {{{{ $labels.pool }}}} "
            "is leaked.",
            silent=silent,
        ),
    )


def _corruption(p: Parameters) -> AlertRow:
    return AlertRow(
        name=CORRUPTION,
        severity=Severity.CRITICAL,
        expression=f'max_over_time(kvledger_findings{{kind=~"{_kinds(CORRUPTION_KINDS)}"}}[{p.long_window()}]) > 0',
        hold_seconds=p.finding_hold_seconds,
        summary="Blocks are in two places at once: requests may read each other's tokens",
        description=f"Engine {ENGINE}: {{{{ $value }}}} open findings of kind {{{{ $labels.kind }}}}.",
        silent="a leak: the blocks are gone, and every answer is right",
    )


def _invariant(p: Parameters) -> AlertRow:
    violations = f"kvledger_invariant_violations[{p.long_window()}]"
    return AlertRow(
        name="KvledgerInvariantBroken",
        severity=Severity.CRITICAL,
        expression=f"max_over_time({violations}) > 0\nor min_over_time({violations}) < 0",
        hold_seconds=p.finding_hold_seconds,
        summary="Free, cached and active blocks do not add up to the pool",
        description=f"Engine {ENGINE}: the count of {{{{ $labels.invariant }}}} blocks is off by {{{{ $value }}}}.",
        silent="a count that is off for as long as one publication takes: only a lasting difference is reported",
        explained_by=(Cause(CORRUPTION),),
    )


def _idle_hold(p: Parameters) -> AlertRow:
    window = p.long_window()
    held = f"sum without (pool, state) (min_over_time({ACTIVE}[{window}]))"
    pinned = f"sum without (pool, kind) (max_over_time(kvledger_pool_pinned_blocks[{window}]))"
    finding = f'min_over_time(kvledger_findings{{kind="{FindingKind.IDLE_HOLD.word}"}}[{window}]) > 0'
    return AlertRow(
        name="KvledgerIdleHold",
        severity=Severity.WARNING,
        expression=f"{held} - {pinned} > 0\n"
        f"and min_over_time(kvledger_engine_idle[{window}]) == 1\n"
        f"or sum without (kind) ({finding})",
        hold_seconds=p.idle_hold_seconds,
        summary="An engine has no work and does not give its blocks back",
        description=f"Engine {ENGINE} is idle and holds blocks that no pin explains ({{{{ $value }}}}).",
        silent="a pause between two requests, blocks kept for reuse, and pins that a transfer still needs",
        explained_by=(*DEAD, Cause(LEAK)),
    )


def _release(p: Parameters) -> AlertRow:
    window = p.rate_window()
    cut = f'cause=~"{"|".join(CUT_SHORT)}"'
    return AlertRow(
        name="KvledgerSlowRelease",
        severity=Severity.WARNING,
        expression=f"histogram_quantile(0.95, rate(kvledger_release_seconds_bucket{{{cut}}}[{window}]))"
        f" > {p.release_target_seconds:g}\n"
        f"and increase(kvledger_release_seconds_count{{{cut}}}[{window}]) >= {p.release_count}\n"
        f"or min_over_time(kvledger_oldest_finishing_seconds[{p.short_window()}]) > {p.finishing_seconds:g}",
        hold_seconds=p.release_hold_seconds,
        summary="Requests that were cancelled keep their blocks for too long",
        description=f"Engine {ENGINE}: {{{{ with $labels.cause }}}}P95 from the end of a request ({{{{ . }}}}) to its "
        "last block given back{{ else }}the oldest request that has ended and still holds blocks{{ end }}: "
        "{{ $value | humanizeDuration }}.",
        silent="one slow release among few, and requests that end by themselves",
        explained_by=(*STUCK, Cause(LEAK)),
    )


def _stuck(p: Parameters, word: str, summary: str) -> AlertRow:
    verdict = f'kvledger_verdict{{verdict="{word.lower()}"}}[{p.short_window()}]'
    return AlertRow(
        name=f"KvledgerEngine{word}",
        severity=Severity.CRITICAL,
        expression=f"max without (verdict) (min_over_time({verdict})) == 1",
        hold_seconds=p.liveness_hold_seconds,
        summary=summary,
        description=f"Engine {ENGINE} is {word.lower()}: its requests wait and get nothing.",
        silent="an idle engine, and one that is stuck in every second sample: it moves",
        explained_by=DEAD if word == "Stalled" else GONE,
    )


def _down(p: Parameters) -> AlertRow:
    window = p.short_window()
    return AlertRow(
        name=DOWN,
        severity=Severity.CRITICAL,
        expression=f"max_over_time(kvledger_engine_up[{window}]) == 0\n"
        f"unless max_over_time(kvledger_engine_closed[{window}]) == 1",
        hold_seconds=p.liveness_hold_seconds,
        summary="An engine is gone without a clean stop, and its ledger is still there",
        description=f"No process holds the ledger of engine {ENGINE}; the agent shows its last state.",
        silent="a restart of little more than a minute, and a clean stop that was asked for",
    )


def _kinds(kinds: tuple[FindingKind, ...]) -> str:
    return "|".join(kind.word for kind in kinds)
