"""The reasons of verdicts as one table: which verdict each belongs to, what to do, and what it says.

Owns the table; decides nothing. The agent rules by it, alerts and boards take their words from it, and docs/verdict.md
shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvledger.words import Action, Reason, Verdict


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """One reason."""

    reason: Reason
    verdict: Verdict
    action: Action
    says: str


_SCALE, _THROTTLE, _POLICY = Action.SCALE_OUT, Action.THROTTLE, Action.CHANGE_BLOCK_POLICY
_FIX, _DOWNSTREAM, _NONE = Action.FIX_LEAK, Action.LOOK_DOWNSTREAM, Action.NONE

ROWS: tuple[ReasonRow, ...] = (
    ReasonRow(
        Reason.LONG_REQUESTS,
        Verdict.POOL_BOUND,
        _SCALE,
        "the pool is full, requests wait for it, and a few long requests hold most of it",
    ),
    ReasonRow(
        Reason.ONE_TENANT,
        Verdict.POOL_BOUND,
        _THROTTLE,
        "the pool is full, requests wait for it, and one of several tenants holds most of it",
    ),
    ReasonRow(
        Reason.RETAINED_PREFIXES,
        Verdict.POOL_BOUND,
        _POLICY,
        "requests wait for the pool, of which much is kept by pins and retention, not by live tables",
    ),
    ReasonRow(
        Reason.SHARED_PREFIXES,
        Verdict.POOL_BOUND,
        _POLICY,
        "requests wait for the pool, of which prefixes shared by live requests hold most",
    ),
    ReasonRow(
        Reason.MANY_REQUESTS,
        Verdict.POOL_BOUND,
        _SCALE,
        "the pool is full with many ordinary requests, and others wait for it",
    ),
    ReasonRow(
        Reason.PREEMPTION_THRASH,
        Verdict.POOL_BOUND,
        _THROTTLE,
        "work is done over and over: tokens computed again rival new ones",
    ),
    ReasonRow(
        Reason.OVERLOAD,
        Verdict.POOL_BOUND,
        _SCALE,
        "the queue is full and most arrivals are refused at the door",
    ),
    ReasonRow(
        Reason.BATCH_SLOTS,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "requests wait for max_num_seqs while the pool has room",
    ),
    ReasonRow(
        Reason.TOKEN_BUDGET,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "requests wait for max_num_batched_tokens while the pool has room",
    ),
    ReasonRow(
        Reason.HEAD_OF_LINE,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "a head that needs many blocks holds up others that would fit",
    ),
    ReasonRow(
        Reason.QUOTA,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "budgets of tenants or classes hold requests back while the pool has room",
    ),
    ReasonRow(
        Reason.SLOW_ALLOCATION,
        Verdict.SCHEDULER_BOUND,
        _DOWNSTREAM,
        "allocations take long though blocks are free",
    ),
    ReasonRow(
        Reason.COMPUTE,
        Verdict.COMPUTE_BOUND,
        _SCALE,
        "steps are the time: the pool has room, nobody waits for blocks or slots, and the model is always at work",
    ),
    ReasonRow(Reason.LEAK, Verdict.LEAKING, _FIX, "blocks leak, or an invariant is broken"),
    ReasonRow(
        Reason.NO_PROGRESS,
        Verdict.STALLED,
        _DOWNSTREAM,
        "steps complete and requests wait, but there is no token and no admission",
    ),
    ReasonRow(
        Reason.NO_HEARTBEAT, Verdict.FROZEN, _DOWNSTREAM, "there is work, the lock is held, and the heartbeat is old"
    ),
    ReasonRow(Reason.FULL_USE, Verdict.HEALTHY, _NONE, "the pool is nearly full and nobody waits long"),
    ReasonRow(Reason.LIGHT, Verdict.HEALTHY, _NONE, "there is room everywhere, or no work"),
    ReasonRow(
        Reason.MISSING_SIGNALS, Verdict.UNKNOWN, _NONE, "what would decide is not known; status and explorer name it"
    ),
)
BY_REASON: Mapping[Reason, ReasonRow] = MappingProxyType({row.reason: row for row in ROWS})
