"""The table: every recording rule and alert, as expressions over the catalogue's names. Pure; no YAML, no file.

Unknown is never zero: no expression falls back to a constant, so an engine that does not report a family cannot fire
on it. Gauges stand under max_over_time or min_over_time: one failed scrape neither fires nor clears anything.
"""

from __future__ import annotations

from kvledger.words import LEDGER_KINDS, FindingKind, RejectionReason, WaitCause
from kvledger_alerts.table import AlertRow, Parameters, RecordingRow, Severity

LEAK_KINDS = (
    FindingKind.EXCESS_REFERENCE,
    FindingKind.LOST_BLOCK,
    FindingKind.PIN_OVERDUE,
    FindingKind.FINISHING_OVERDUE,
    FindingKind.USAGE_OUT_OF_RANGE,
    FindingKind.IDLE_HOLD,
)
"""Blocks that nobody gets back. A ledger's other kinds are worse: content may be wrong.

A page's other symptoms are told as its verdict, by KvledgerEngineStalled and KvledgerEngineFrozen.
"""
CORRUPTION_KINDS = tuple(kind for kind in LEDGER_KINDS if kind not in LEAK_KINDS)
PRESSURE_REASONS = (RejectionReason.QUEUE_FULL, RejectionReason.QUEUE_TIMEOUT)
"""Refusals that a larger pool may have avoided; the other reasons are about one request or one tenant."""

ACTIVE_RATIO = "pool:kvledger_pool_active_blocks:ratio"
HEADROOM_RATIO = "pool:kvledger_pool_headroom_blocks:ratio"
PRESSURE = "engine:kvledger_pool_pressure:any"

ENGINE = "{{ $labels.engine }}:{{ $labels.rank }}"


def recording_rows(parameters: Parameters) -> tuple[RecordingRow, ...]:
    """The recording rules, in an order in which each only needs scraped series."""
    window = parameters.scale.window(parameters.long_seconds)
    reasons = "|".join(reason.word for reason in PRESSURE_REASONS)
    active = 'kvledger_pool_blocks{state="active"}'
    capacity = "(kvledger_pool_capacity_blocks > 0)"
    waiting = f'kvledger_requests_waiting{{cause="{WaitCause.POOL.word}"}}'
    return (
        RecordingRow(record=ACTIVE_RATIO, expression=f"{active} / ignoring (state) {capacity}"),
        RecordingRow(
            record=HEADROOM_RATIO,
            expression=f"({capacity} - ignoring (state) {active} - kvledger_pool_committed_blocks) / {capacity}",
        ),
        RecordingRow(
            record=PRESSURE,
            expression=f"sum without (cause, class) (max_over_time({waiting}[{window}])) > 0\n"
            f"or sum without (mode) (increase(kvledger_preemptions_total[{window}])) > 0\n"
            f'or sum without (reason) (increase(kvledger_rejections_total{{reason=~"{reasons}"}}[{window}])) > 0',
        ),
    )


def alert_rows(parameters: Parameters) -> tuple[AlertRow, ...]:
    """All alerts, the pool's first."""
    return (
        *_high_watermark(parameters),
        _exhaustion(parameters),
        *_leak(parameters),
        _corruption(parameters),
        _stuck(parameters, "Stalled", "An engine takes steps, but none of its requests moves"),
        _stuck(parameters, "Frozen", "An engine has work and has stopped taking steps"),
        _down(parameters),
        _rejections(parameters),
        _unreadable(parameters),
        _agent(parameters),
    )


def _high_watermark(p: Parameters) -> tuple[AlertRow, AlertRow]:
    window = p.scale.window(p.long_seconds)
    ratio = f"max_over_time({ACTIVE_RATIO}[{window}])"
    own = f"{ratio} >= max_over_time(kvledger_pool_alert_watermark_ratio[{window}])"
    description = (
        f"Pool {{{{ $labels.pool }}}} of engine {ENGINE} has {{{{ $value | humanizePercentage }}}} of its blocks in "
        "use, and requests wait for blocks, are preempted, or are refused."
    )

    def row(severity: Severity, condition: str) -> AlertRow:
        return AlertRow(
            name="KvledgerPoolHighWatermark",
            severity=severity,
            expression=f"{condition}\nand ignoring (pool) {PRESSURE}",
            hold_seconds=p.pressure_hold_seconds,
            summary="A block pool is nearly full and requests suffer from it",
            description=description,
        )

    return (
        row(Severity.WARNING, own),
        row(Severity.CRITICAL, f"{ratio} >= {p.critical_ratio}"),
    )


def _exhaustion(p: Parameters) -> AlertRow:
    window = p.scale.window(p.short_seconds)
    return AlertRow(
        name="KvledgerPoolExhaustionPredicted",
        severity=Severity.WARNING,
        expression=f"max_over_time(kvledger_pool_seconds_to_exhaustion[{window}]) < {p.exhaustion_seconds:g}\n"
        f"and min_over_time({HEADROOM_RATIO}[{window}]) < {p.headroom_ratio}",
        hold_seconds=p.exhaustion_hold_seconds,
        summary="A block pool runs out soon if it goes on growing like this",
        description=f"At the last minute's growth, pool {{{{ $labels.pool }}}} of engine {ENGINE} has no headroom left "
        "in {{ $value | humanizeDuration }}.",
    )


def _leak(p: Parameters) -> tuple[AlertRow, AlertRow]:
    window = p.scale.window(p.long_seconds)
    name, summary = "KvledgerBlockLeak", "Blocks are held by nobody and do not come back"
    return (
        AlertRow(
            name=name,
            severity=Severity.WARNING,
            expression=f'max_over_time(kvledger_findings{{kind=~"{_kinds(LEAK_KINDS)}"}}[{window}]) > 0',
            hold_seconds=p.finding_hold_seconds,
            summary=summary,
            description=f"Engine {ENGINE}: {{{{ $value }}}} open findings of kind {{{{ $labels.kind }}}}.",
        ),
        AlertRow(
            name=name,
            severity=Severity.CRITICAL,
            expression=f"max_over_time(kvledger_pool_leaked_blocks[{window}])\n"
            f"/ (max_over_time(kvledger_pool_capacity_blocks[{window}]) > 0) > {p.leaked_ratio}",
            hold_seconds=p.finding_hold_seconds,
            summary=summary,
            description=f"Engine {ENGINE}: {{{{ $value | humanizePercentage }}}} of pool {{{{ $labels.pool }}}} "
            "is leaked.",
        ),
    )


def _corruption(p: Parameters) -> AlertRow:
    window = p.scale.window(p.long_seconds)
    violations = f"kvledger_invariant_violations[{window}]"
    return AlertRow(
        name="KvledgerBlockCorruption",
        severity=Severity.CRITICAL,
        expression=f'max_over_time(kvledger_findings{{kind=~"{_kinds(CORRUPTION_KINDS)}"}}[{window}]) > 0\n'
        f"or max_over_time({violations}) > 0\n"
        f"or min_over_time({violations}) < 0",
        hold_seconds=p.finding_hold_seconds,
        summary="Blocks are in two places at once: requests may read each other's tokens",
        description=f"Engine {ENGINE}: {{{{ with $labels.kind }}}}open findings of kind {{{{ . }}}}{{{{ end }}}}"
        "{{ with $labels.invariant }}the count of {{ . }} blocks is off{{ end }} ({{ $value }}).",
    )


def _stuck(p: Parameters, word: str, summary: str) -> AlertRow:
    verdict = f'kvledger_verdict{{verdict="{word.lower()}"}}[{p.scale.window(p.short_seconds)}]'
    return AlertRow(
        name=f"KvledgerEngine{word}",
        severity=Severity.CRITICAL,
        expression=f"max without (verdict) (min_over_time({verdict})) == 1",
        hold_seconds=p.liveness_hold_seconds,
        summary=summary,
        description=f"Engine {ENGINE} is {word.lower()}: its requests wait and get nothing.",
    )


def _down(p: Parameters) -> AlertRow:
    window = p.scale.window(p.short_seconds)
    return AlertRow(
        name="KvledgerEngineDown",
        severity=Severity.CRITICAL,
        expression=f"max_over_time(kvledger_engine_up[{window}]) == 0\n"
        f"unless max_over_time(kvledger_engine_closed[{window}]) == 1",
        hold_seconds=p.liveness_hold_seconds,
        summary="An engine is gone without a clean stop, and its ledger is still there",
        description=f"No process holds the ledger of engine {ENGINE}; the agent shows its last state.",
    )


def _rejections(p: Parameters) -> AlertRow:
    window = p.scale.window(p.rate_seconds)
    refused = f'kvledger_rejections_total{{reason!="{RejectionReason.DRAINING.word}"}}[{window}]'
    return AlertRow(
        name="KvledgerRejections",
        severity=Severity.WARNING,
        expression=f"rate({refused})\n"
        "/ ignoring (reason) group_left ()\n"
        f"(sum without (reason) (rate(kvledger_rejections_total[{window}]))"
        f" + sum without (finish_reason, tenant) (rate(kvledger_requests_total[{window}])))\n"
        f"> {p.rejection_ratio}\n"
        f"and increase({refused}) >= {p.rejection_count}",
        hold_seconds=p.rejection_hold_seconds,
        summary="Requests are refused before they hold a block",
        description=f"Engine {ENGINE} refuses {{{{ $value | humanizePercentage }}}} of its requests "
        "as {{ $labels.reason }}.",
    )


def _unreadable(p: Parameters) -> AlertRow:
    return AlertRow(
        name="KvledgerLedgerUnreadable",
        severity=Severity.WARNING,
        expression=f"max_over_time(kvledger_agent_source_success[{p.scale.window(p.short_seconds)}]) == 0",
        hold_seconds=p.liveness_hold_seconds,
        summary="A ledger cannot be read: no other alert can fire for its engine",
        description="The agent at {{ $labels.instance }} cannot read the ledger of {{ $labels.source }}.",
    )


def _agent(p: Parameters) -> AlertRow:
    up = f'up{{job="{p.job}"}}'
    return AlertRow(
        name="KvledgerAgentAbsent",
        severity=Severity.CRITICAL,
        expression=f"max_over_time({up}[{p.scale.window(p.short_seconds)}]) == 0\nor absent({up})",
        hold_seconds=p.agent_hold_seconds,
        summary="Nobody watches the engines: an agent is gone, or its samples are stale",
        description="{{ with $labels.instance }}The agent at {{ . }} does not answer, or refuses with 503 because its "
        "last sample is too old.{{ else }}Prometheus has no target for job {{ $labels.job }}.{{ end }}",
    )


def _kinds(kinds: tuple[FindingKind, ...]) -> str:
    return "|".join(kind.word for kind in kinds)
