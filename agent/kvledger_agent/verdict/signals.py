"""Signals: a window of moments and the request time in it as the few numbers a ruling compares. Pure.

Means are over the moments of the window, differences between its first and its last. What one of them needs and the
source does not report makes it None, never 0; with a single moment nothing that is counted is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvledger.catalog import OTHER_TENANT
from kvledger_agent.sums import over
from kvledger_agent.verdict.change import PHASES, Change, since_refusals_are_known
from kvledger_agent.verdict.holders import Holders
from kvledger_agent.verdict.moments import Moment
from kvledger_agent.verdict.queue_head import QueueHead
from kvledger_agent.verdict.request_time import RequestTime

QUEUE_REFUSALS = ("queue_full", "queue_timeout")
POOL_CAUSES = ("pool", "preemption")
QUOTA_REFUSALS = ("tenant_quota", "exceeds_quota")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What requests waited for, in shares of all request time."""

    pool: float
    batch_slots: float
    token_budget: float
    quota: float
    step: float
    elsewhere: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What a ruling looks at; see `Thresholds` for what each is compared with.

    `room` and `used` are means of (free + cached) ÷ capacity and active ÷ capacity. `waiting`, of those `deferred`, and
    `running` are mean numbers of requests; `idle` says that the engine has no work now. `request_seconds_per_second` is
    all request time over the window: the mean number of requests there. `new_tokens` were computed for the first time.
    `model` is the part of the window that went to the model. `sender` is the tenant that sent `sender_share` of the
    arrivals, one of `senders`; `tenant` holds `tenant_share` of the active blocks, one of `tenants`; `holders_known` is
    false where one look saw nobody wait. `held_up` is the part of those behind the queue's head that would fit.
    """

    span_seconds: float
    idle: bool
    wait: Wait | None
    request_seconds_per_second: float | None
    used: float | None
    room: float | None
    running: float | None
    waiting: float | None
    deferred: float | None
    arrivals: float | None
    refused: Mapping[str, float] | None
    sender: str | None
    sender_share: float | None
    senders: int | None
    recomputed_tokens: float | None
    new_tokens: float | None
    preemptions: float | None
    model: float | None
    step_seconds: float | None
    allocating: float | None
    slots_used: float | None
    tokens_used: float | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    holders_known: bool
    tenant: str | None
    tenant_share: float | None
    tenants: int | None
    long_requests: float | None
    long_share: float | None
    pinned_share: float | None
    shared_share: float | None
    head: QueueHead | None
    held_up: float | None


def signals_of(moments: Sequence[Moment], time: RequestTime | None) -> Signals:
    """The signals of a window, which has at least one moment."""
    inside = moments[1:] or moments
    last = moments[-1]
    change = Change(moments)
    holders, seen_short = _holders(inside)
    heads = [m.insight.head for m in inside if m.insight is not None and m.insight.head is not None]
    tenant, tenant_share = _largest_tenant(holders)
    door = Change(since_refusals_are_known(moments))
    arrived = door.arrived_by_tenant()
    sender = _largest(arrived)
    insight = last.insight
    return Signals(
        span_seconds=change.seconds,
        idle=bool(last.idle),
        wait=_waits(time),
        request_seconds_per_second=None if time is None else over(time.total_seconds, time.window_seconds),
        used=_mean(m.used for m in inside),
        room=_mean(m.room for m in inside),
        running=_mean(m.running for m in inside),
        waiting=_mean(m.waiting for m in inside),
        deferred=_mean(m.deferred for m in inside),
        arrivals=door.arrivals(),
        refused=door.refused(),
        sender=sender,
        sender_share=None if sender is None else over(arrived.get(sender), sum(arrived.values())),
        senders=sum(count > 0 for count in arrived.values()) or None,
        recomputed_tokens=change.of("recomputed_tokens_total"),
        new_tokens=change.new_tokens(),
        preemptions=change.of("preemptions_total"),
        model=change.part_of_time("step_model_seconds"),
        step_seconds=over(change.sum_of(*PHASES), change.of("engine_steps_total")),
        allocating=over(change.of("allocation_seconds"), change.sum_of(*PHASES)),
        slots_used=None if insight is None else over(_mean(m.running for m in inside), insight.max_num_seqs),
        tokens_used=None if insight is None else over(change.tokens_per_step(), insight.max_num_batched_tokens),
        max_num_seqs=None if insight is None else insight.max_num_seqs,
        max_num_batched_tokens=None if insight is None else insight.max_num_batched_tokens,
        holders_known=seen_short or change.long_enough,
        tenant=tenant,
        tenant_share=tenant_share,
        tenants=max((len(h.tenants) for h in holders), default=None),
        long_requests=_mean(float(h.long_requests) for h in holders),
        long_share=_mean(over(h.long_blocks, h.active_blocks) for h in holders),
        pinned_share=_mean(over(h.pinned_blocks, h.capacity_blocks) for h in holders),
        shared_share=_mean(over(h.shared_blocks, h.active_blocks) for h in holders),
        head=heads[-1] if heads else None,
        held_up=_held_up(heads),
    )


def _waits(time: RequestTime | None) -> Wait | None:
    if time is None:
        return None
    shares = time.shares

    def of(*causes: str) -> float:
        return sum(shares.get(f"wait_{cause}", 0.0) for cause in causes)

    return Wait(
        pool=of(*POOL_CAUSES),
        batch_slots=of("batch_slots"),
        token_budget=of("token_budget"),
        quota=of("tenant_quota", "fair_share", "class_budget"),
        step=of("step"),
        elsewhere=of("paused", "deferred"),
    )


def _holders(moments: Sequence[Moment]) -> tuple[list[Holders], bool]:
    """Who held the pool while somebody waited for it, and True; where nobody was seen to, at every moment."""
    known = [(m, m.insight.holders) for m in moments if m.insight is not None and m.insight.holders is not None]
    short = [holders for m, holders in known if any((m.waiting_by_cause or {}).get(cause) for cause in POOL_CAUSES)]
    return short or [holders for _, holders in known], bool(short)


def _largest_tenant(holders: Sequence[Holders]) -> tuple[str | None, float | None]:
    """Who holds the most over the window, and its mean share of the active blocks."""
    held: dict[str, float] = {}
    for holder in holders:
        for name, blocks in holder.tenants.items():
            held[name] = held.get(name, 0.0) + blocks
    active, largest = sum(holder.active_blocks for holder in holders), _largest(held)
    return (None, None) if largest is None or not active else (largest, held[largest] / active)


def _largest(by_tenant: Mapping[str, float]) -> str | None:
    """The tenant with the most. Those counted as `other` are many: nobody can be told to slow one of them down."""
    named = {name: number for name, number in by_tenant.items() if number > 0 and name != OTHER_TENANT}
    return max(named, key=lambda name: named[name]) if named else None


def _held_up(heads: Sequence[QueueHead]) -> float | None:
    """Of those that wait behind the head for the pool, all moments together, the part that would fit."""
    return over(sum(head.fitting for head in heads), sum(head.waiting - 1 for head in heads))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
