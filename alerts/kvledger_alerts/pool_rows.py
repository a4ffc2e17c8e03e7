"""The rows of the pool: full, running out, shared by few, and refusing. Pure; no YAML, no file."""

from __future__ import annotations

from kvledger.words import BlockState, RejectionReason, WaitCause
from kvledger_alerts.causes import FULL_POOL, HIGH_WATERMARK, STUCK
from kvledger_alerts.table import AlertRow, Parameters, RecordingRow, Severity

PRESSURE_REASONS = (RejectionReason.QUEUE_FULL, RejectionReason.QUEUE_TIMEOUT)
"""Refusals that a larger pool may have avoided; the other reasons are about one request or one tenant."""

ACTIVE_RATIO = "pool:kvledger_pool_active_blocks:ratio"
HEADROOM_RATIO = "pool:kvledger_pool_headroom_blocks:ratio"
SHARED_RATIO = "engine:kvledger_group_shared_blocks:ratio"
PRESSURE = "engine:kvledger_pool_pressure:any"

ENGINE = "{{ $labels.engine }}:{{ $labels.rank }} at {{ $labels.instance }}"
"""What a description calls an engine core: two hosts may each have an engine of that name, and an agent of their own.
"""
ACTIVE = f'kvledger_pool_blocks{{state="{BlockState.ACTIVE.word}"}}'


def recording_rows(p: Parameters) -> tuple[RecordingRow, ...]:
    """How full a pool is, what is left of it, what of it is shared, and whether anybody suffers.

    A block belongs to one group, so that the groups' shared blocks add up, at one instant, to no more than the pool.
    """
    window = p.long_window()
    reasons = words(PRESSURE_REASONS)
    capacity = "(kvledger_pool_capacity_blocks > 0)"
    waiting = f'kvledger_requests_waiting{{cause="{WaitCause.POOL.word}"}}'
    return (
        RecordingRow(record=ACTIVE_RATIO, expression=f"{ACTIVE} / ignoring (state) {capacity}"),
        RecordingRow(
            record=HEADROOM_RATIO,
            expression=f"({capacity} - ignoring (state) {ACTIVE} - kvledger_pool_committed_blocks) / {capacity}",
        ),
        RecordingRow(
            record=SHARED_RATIO,
            expression=f"sum without (group) (kvledger_group_shared_blocks) / sum without (pool) {capacity}",
        ),
        RecordingRow(
            record=PRESSURE,
            expression=f"sum without (cause, class) (max_over_time({waiting}[{window}])) > 0\n"
            f"or sum without (mode) (increase(kvledger_preemptions_total[{window}])) > 0\n"
            f'or sum without (reason) (increase(kvledger_rejections_total{{reason=~"{reasons}"}}[{window}])) > 0',
        ),
    )


def alert_rows(p: Parameters) -> tuple[AlertRow, ...]:
    """The alerts of the pool."""
    return (*_high_watermark(p), _exhaustion(p), _rejections(p), _sharing(p))


def words(members: tuple[RejectionReason, ...] | tuple[WaitCause, ...]) -> str:
    """Words as the alternatives of a matcher."""
    return "|".join(member.word for member in members)


def _high_watermark(p: Parameters) -> tuple[AlertRow, AlertRow]:
    window = p.long_window()
    ratio = f"max_over_time({ACTIVE_RATIO}[{window}])"
    own = f"{ratio} >= max_over_time(kvledger_pool_alert_watermark_ratio[{window}])"
    description = (
        f"Pool {{{{ $labels.pool }}}} of engine {ENGINE} has {{{{ $value | humanizePercentage }}}} of its blocks in "
        "use, and requests wait for blocks, are preempted, or are refused."
    )

    def row(severity: Severity, condition: str) -> AlertRow:
        return AlertRow(
            name=HIGH_WATERMARK,
            severity=severity,
            expression=f"{condition}\nand ignoring (pool) {PRESSURE}",
            hold_seconds=p.pressure_hold_seconds,
            summary="A block pool is nearly full and requests suffer from it",
            description=description,
            silent="a full pool that nobody waits for: that is what a cache is for",
            explained_by=STUCK,
        )

    return (
        row(Severity.WARNING, own),
        row(Severity.CRITICAL, f"{ratio} >= {p.critical_ratio}"),
    )


def _exhaustion(p: Parameters) -> AlertRow:
    window = p.short_window()
    return AlertRow(
        name="KvledgerPoolExhaustionPredicted",
        severity=Severity.WARNING,
        expression=f"max_over_time(kvledger_pool_seconds_to_exhaustion[{window}]) < {p.exhaustion_seconds:g}\n"
        f"and min_over_time({HEADROOM_RATIO}[{window}]) < {p.headroom_ratio}",
        hold_seconds=p.exhaustion_hold_seconds,
        summary="A block pool runs out soon if it goes on growing like this",
        description=f"At the last minute's growth, pool {{{{ $labels.pool }}}} of engine {ENGINE} has no headroom left "
        "in {{ $value | humanizeDuration }}.",
        silent="a ramp-up with half the pool as headroom, and a pool that has little headroom and does not grow",
        explained_by=(*STUCK, FULL_POOL),
    )


def _rejections(p: Parameters) -> AlertRow:
    window = p.rate_window()
    refused = f'kvledger_rejections_total{{reason!="{RejectionReason.DRAINING.word}"}}[{window}]'
    return AlertRow(
        name="KvledgerRejections",
        severity=Severity.WARNING,
        expression=f"rate({refused})\n"
        "/ ignoring (reason) group_left ()\n"
        f"(sum without (reason) (rate(kvledger_rejections_total[{window}]))"
        f" + sum without (finish_reason, tenant) (rate(kvledger_requests_total[{window}])) > 0)\n"
        f"> {p.rejection_ratio}\n"
        f"and increase({refused}) >= {p.rejection_count}",
        hold_seconds=p.rejection_hold_seconds,
        summary="Requests are refused before they hold a block",
        description=f"Engine {ENGINE} refuses {{{{ $value | humanizePercentage }}}} of its requests "
        "as {{ $labels.reason }}.",
        silent="a handful of refusals, and those of an engine that drains: a stop as planned",
        explained_by=STUCK,
    )


def _sharing(p: Parameters) -> AlertRow:
    return AlertRow(
        name="KvledgerSharedPrefixPinning",
        severity=Severity.WARNING,
        expression=f"max_over_time({SHARED_RATIO}[{p.long_window()}]) > {p.sharing_ratio}\nand {PRESSURE}",
        hold_seconds=p.pressure_hold_seconds,
        summary="Blocks that several requests share hold most of the pool, and others suffer",
        description=f"Blocks shared by live requests are {{{{ $value | humanizePercentage }}}} of the pool of engine "
        f"{ENGINE}: they come back only when the last of the requests ends.",
        silent="much sharing that nobody suffers from: it saves blocks",
        explained_by=STUCK,
    )
