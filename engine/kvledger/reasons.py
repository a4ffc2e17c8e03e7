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
    """One reason: `says` what is so, and `to_do` tells somebody on call what to do now, and what not."""

    reason: Reason
    verdict: Verdict
    action: Action
    says: str
    to_do: str


_SCALE, _THROTTLE, _POLICY = Action.SCALE_OUT, Action.THROTTLE, Action.CHANGE_BLOCK_POLICY
_FIX, _DOWNSTREAM, _NONE = Action.FIX_LEAK, Action.LOOK_DOWNSTREAM, Action.NONE

ROWS: tuple[ReasonRow, ...] = (
    ReasonRow(
        Reason.LONG_REQUESTS,
        Verdict.POOL_BOUND,
        _SCALE,
        "the pool is full, requests wait for it, and a few long requests hold most of it",
        "send long requests to an engine of their own or lower their max_tokens; then add capacity",
    ),
    ReasonRow(
        Reason.ONE_TENANT,
        Verdict.POOL_BOUND,
        _THROTTLE,
        "the pool is full, requests wait for it, and one of several tenants holds most of it",
        "throttle this tenant at the gateway, or give it a quota; added capacity would be its next",
    ),
    ReasonRow(
        Reason.RETAINED_PREFIXES,
        Verdict.POOL_BOUND,
        _POLICY,
        "requests wait for the pool, of which much is kept by pins and retention, not by live tables",
        "shorten leases and retention, and see who holds the pins; do not add capacity for them",
    ),
    ReasonRow(
        Reason.SHARED_PREFIXES,
        Verdict.POOL_BOUND,
        _POLICY,
        "requests wait for the pool, of which prefixes shared by live requests hold most",
        "shorten the shared prefix, or route its requests together to fewer engines; see who brought it in",
    ),
    ReasonRow(
        Reason.MANY_REQUESTS,
        Verdict.POOL_BOUND,
        _SCALE,
        "the pool is full with many ordinary requests, and others wait for it",
        "add engines, or blocks to this one: the load has outgrown the pool",
    ),
    ReasonRow(
        Reason.PREEMPTION_THRASH,
        Verdict.POOL_BOUND,
        _THROTTLE,
        "work is done over and over: tokens computed again rival new ones",
        "admit fewer: lower max_num_seqs or raise the admission watermark; do not add load or retries",
    ),
    ReasonRow(
        Reason.OVERLOAD,
        Verdict.POOL_BOUND,
        _SCALE,
        "the queue is full and most arrivals are refused at the door",
        "add capacity; until it is there, let the gateway turn the excess away with a pause before a retry",
    ),
    ReasonRow(
        Reason.TENANT_OVERLOAD,
        Verdict.POOL_BOUND,
        _THROTTLE,
        "the queue is full, most arrivals are refused at the door, and one of several tenants sends most of them",
        "throttle this tenant at the gateway: the others are refused for its sake; added capacity would be its next",
    ),
    ReasonRow(
        Reason.BATCH_SLOTS,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "requests wait for max_num_seqs while the pool has room",
        "raise max_num_seqs step by step, and watch the time between tokens; more blocks change nothing",
    ),
    ReasonRow(
        Reason.TOKEN_BUDGET,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "requests wait for max_num_batched_tokens while the pool has room",
        "raise max_num_batched_tokens or let prompts be chunked; more blocks change nothing",
    ),
    ReasonRow(
        Reason.HEAD_OF_LINE,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "a head that needs many blocks holds up others that would fit",
        "send what needs much to an engine of its own, or let smaller requests pass; the pool is large enough for them",
    ),
    ReasonRow(
        Reason.QUOTA,
        Verdict.SCHEDULER_BOUND,
        _POLICY,
        "budgets of tenants or classes, or a limit at the door, hold requests back while the pool has room",
        "raise the budget or limit that is named, or leave it: it protects the others; more blocks change nothing",
    ),
    ReasonRow(
        Reason.SLOW_ALLOCATION,
        Verdict.SCHEDULER_BOUND,
        _DOWNSTREAM,
        "allocations take long though blocks are free",
        "look at the engine's allocator and at the machine it runs on: its locks, its search, its processor",
    ),
    ReasonRow(
        Reason.COMPUTE,
        Verdict.COMPUTE_BOUND,
        _SCALE,
        "steps are the time: the pool has room, nobody waits for blocks or slots, and the model is always at work",
        "add compute: more engines or faster ones; more memory for blocks changes nothing",
    ),
    ReasonRow(
        Reason.LEAK,
        Verdict.LEAKING,
        _FIX,
        "blocks leak, or an invariant is broken",
        "save a snapshot, take the engine out of traffic and restart it; then fix the release that is named",
    ),
    ReasonRow(
        Reason.NO_PROGRESS,
        Verdict.STALLED,
        _DOWNSTREAM,
        "steps complete and requests wait, but no token is computed and nobody is admitted",
        "take the engine out of traffic and save a snapshot before you restart it; do not add load or capacity",
    ),
    ReasonRow(
        Reason.NO_HEARTBEAT,
        Verdict.FROZEN,
        _DOWNSTREAM,
        "there is work, the lock is held, and the heartbeat is old",
        "look at the process and its device: stopped, in an endless step, stuck in a driver; restart it if it stays",
    ),
    ReasonRow(
        Reason.FULL_USE,
        Verdict.HEALTHY,
        _NONE,
        "the pool is nearly full and nobody waits long",
        "nothing: a pool that is full and keeps nobody waiting is what it is for",
    ),
    ReasonRow(
        Reason.LIGHT,
        Verdict.HEALTHY,
        _NONE,
        "there is room everywhere, or no work",
        "nothing here: if users wait, look at the gateway and the network before this engine",
    ),
    ReasonRow(
        Reason.MISSING_SIGNALS,
        Verdict.UNKNOWN,
        _NONE,
        "what would decide is not known; status and explorer name it",
        "find out about what is named as missing; decide nothing about capacity until then",
    ),
)
BY_REASON: Mapping[Reason, ReasonRow] = MappingProxyType({row.reason: row for row in ROWS})
