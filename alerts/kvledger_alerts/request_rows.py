"""The rows of what requests go through: waits, preemption, quotas, and a prefix cache that hits no more."""

from __future__ import annotations

from kvledger.words import WaitCause
from kvledger_alerts.causes import DEAD, HELD_BACK, POOL_WAITS, STUCK, TENANT, WAIT
from kvledger_alerts.pool_rows import ENGINE
from kvledger_alerts.table import IDENTITY, AlertRow, Cause, Parameters, RecordingRow, Severity, duration_text

PLANNED = WaitCause.PAUSED.word
"""A wait that somebody asked for."""
WAIT_P95 = "engine:kvledger_wait_seconds:p95_rate5m"
HITS_NOW, HITS_BEFORE = "engine:kvledger_prefix_hits:ratio_rate5m", "engine:kvledger_prefix_hits:ratio_rate6h"


def recording_rows(p: Parameters) -> tuple[RecordingRow, ...]:
    """The P95 of waits by cause, and the share of looked-up tokens that were found, now and before."""
    waits = f'sum without (class) (rate(kvledger_wait_seconds_bucket{{cause!="{PLANNED}"}}[{p.rate_window()}]))'
    return (
        RecordingRow(record=WAIT_P95, expression=f"histogram_quantile(0.95, {waits})"),
        _hits(HITS_NOW, p.rate_window()),
        _hits(HITS_BEFORE, p.scale.window(p.baseline_seconds)),
    )


def alert_rows(p: Parameters) -> tuple[AlertRow, ...]:
    """The alerts of what requests go through."""
    return (_wait(p), _oldest(p), _never_fit(p), _thrash(p), _tenant(p), _hit_collapse(p))


def _hits(record: str, window: str) -> RecordingRow:
    looked_up = f"(rate(kvledger_prefix_queried_tokens_total[{window}]) > 0)"
    return RecordingRow(record=record, expression=f"rate(kvledger_prefix_hit_tokens_total[{window}]) / {looked_up}")


def _wait(p: Parameters) -> AlertRow:
    ended = f"sum without (class) (increase(kvledger_wait_seconds_count[{p.rate_window()}]))"
    return AlertRow(
        name=WAIT,
        severity=Severity.WARNING,
        expression=f"{WAIT_P95} > {p.wait_target_seconds:g}\nand {ended} >= {p.wait_count}",
        hold_seconds=p.wait_hold_seconds,
        summary="Requests wait for one cause longer than the target",
        description=f"Engine {ENGINE}: one wait for {{{{ $labels.cause }}}} in twenty takes more than "
        f"{{{{ $value | humanizeDuration }}}}; the target is {p.wait_target_seconds:g} s.",
        silent="one long wait in a quiet night, and an engine that was paused on purpose",
        explained_by=(*STUCK, POOL_WAITS, HELD_BACK),
    )


def _oldest(p: Parameters) -> AlertRow:
    same = (*IDENTITY, "cause")
    return AlertRow(
        name="KvledgerOldestWaiter",
        severity=Severity.WARNING,
        expression=f'min_over_time(kvledger_oldest_wait_seconds{{cause!="{PLANNED}"}}[{p.short_window()}])'
        f" > {p.oldest_wait_seconds:g}",
        hold_seconds=p.liveness_hold_seconds,
        summary="A request waits and is not let in",
        description=f"Engine {ENGINE}: a request of tenant {{{{ $labels.tenant }}}} has waited for "
        "{{ $labels.cause }} for {{ $value | humanizeDuration }}, and waits on.",
        silent="a queue that moves, whoever is its oldest: each of its requests is young",
        explained_by=(
            *STUCK,
            POOL_WAITS,
            HELD_BACK,
            Cause(WAIT, same=same),
            Cause(TENANT, same=(*IDENTITY, "tenant"), only=(f'cause="{WaitCause.TENANT_QUOTA.word}"',)),
        ),
    )


def _never_fit(p: Parameters) -> AlertRow:
    return AlertRow(
        name="KvledgerNeverFit",
        severity=Severity.WARNING,
        expression=f"min_over_time(kvledger_requests_never_fit[{p.short_window()}]) > 0",
        hold_seconds=p.never_fit_hold_seconds,
        summary="Requests wait that could not run even in an empty pool",
        description=f"Engine {ENGINE}: {{{{ $value }}}} waiting requests need more blocks than the whole pool has.",
        silent="long requests that fit and have to wait for their turn",
        explained_by=DEAD,
    )


def _thrash(p: Parameters) -> AlertRow:
    window = p.rate_window()
    return AlertRow(
        name="KvledgerPreemptionThrash",
        severity=Severity.WARNING,
        expression=f"rate(kvledger_recomputed_tokens_total[{window}])\n"
        f"/ (rate(kvledger_generation_tokens_total[{window}]) > 0) > {p.thrash_ratio}\n"
        f"and sum without (mode) (increase(kvledger_preemptions_total[{window}])) >= {p.thrash_count}",
        hold_seconds=p.thrash_hold_seconds,
        summary="Requests are preempted and computed over and over",
        description=f"Engine {ENGINE} computes {{{{ $value | humanize }}}} tokens again for each one it generates.",
        silent="preemption now and then, which is how a full pool goes on",
        explained_by=STUCK,
    )


def _tenant(p: Parameters) -> AlertRow:
    window = p.long_window()
    waits = f'max_over_time(kvledger_oldest_wait_seconds{{cause="{WaitCause.TENANT_QUOTA.word}"}}[{window}])'
    return AlertRow(
        name=TENANT,
        severity=Severity.WARNING,
        expression=f"min_over_time(kvledger_tenant_blocks[{window}])\n"
        f"/ (max_over_time(kvledger_tenant_quota_blocks[{window}]) > 0) >= {p.quota_ratio}\n"
        f"and ignoring (cause) {waits} > 0",
        hold_seconds=p.tenant_hold_seconds,
        summary="A tenant has used up its quota, and its requests wait",
        description=f"Engine {ENGINE}: tenant {{{{ $labels.tenant }}}} holds "
        "{{ $value | humanizePercentage }} of its quota, and its requests wait for the rest.",
        silent="a tenant that uses what it was given, and waits for nothing",
        explained_by=STUCK,
    )


def _hit_collapse(p: Parameters) -> AlertRow:
    looked_up = f"increase(kvledger_prefix_queried_tokens_total[{p.rate_window()}])"
    return AlertRow(
        name="KvledgerPrefixHitCollapse",
        severity=Severity.WARNING,
        expression=f"{HITS_NOW} < {p.hit_drop_ratio} * ({HITS_BEFORE} > {p.hit_ratio})\n"
        f"and {looked_up} >= {p.hit_tokens}",
        hold_seconds=p.cache_hold_seconds,
        summary="The prefix cache hits far less than it used to",
        description=f"Engine {ENGINE}: {{{{ $value | humanizePercentage }}}} of the prompt tokens looked up are found, "
        f"less than half of what the last {duration_text(p.baseline_seconds)} had.",
        silent="a start with an empty cache, a load that never shared, and an hour without traffic",
        explained_by=STUCK,
    )
