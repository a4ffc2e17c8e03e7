"""Refusals at the door: overload, by all or by one tenant, or quotas and limits that turn most away. Pure."""

from __future__ import annotations

from kvledger.words import Reason
from kvledger_agent.verdict.compute_rules import compute_ruling
from kvledger_agent.verdict.rulings import Ruling, percent
from kvledger_agent.verdict.signals import QUEUE_REFUSALS, QUOTA_REFUSALS, Signals
from kvledger_agent.verdict.thresholds import Thresholds


def refused_at_the_door(signals: Signals, limits: Thresholds) -> Ruling | None:
    """A ruling where most arrivals are refused; None where they are not, or where that is not known.

    It goes before who holds the pool: those who hold it are the ones that were let in. Where requests wait for a limit
    of a step while the pool has room, or for the model, that limit is what fills the queue. Where the pool has room and
    nobody waits at all, as behind vLLM's cap on requests in flight, the limit at the door is what is too low.
    """
    if signals.refused is None or signals.arrivals is None or signals.arrivals <= 0:
        return None
    queue, quota = (
        sum(signals.refused.get(reason, 0.0) for reason in reasons) for reasons in (QUEUE_REFUSALS, QUOTA_REFUSALS)
    )
    if queue + quota < max(limits.refused * signals.arrivals, limits.refused_least):
        return None
    told = f"{queue + quota:.0f} of {signals.arrivals:.0f} arrivals ({percent((queue + quota) / signals.arrivals)})"
    if quota > queue:
        return Ruling(Reason.QUOTA, f"{told} were refused, {quota:.0f} of them by a quota{_room(signals)}")
    if signals.wait is None and (signals.room is None or signals.room >= limits.room):
        return Ruling(
            Reason.MISSING_SIGNALS,
            f"{told} were refused at the door{_room(signals)}; what fills the queue is not reported",
            missing=("wait causes",),
        )
    if _pool_is_not_it(signals, limits):
        return None
    if signals.wait is not None and signals.wait.pool < limits.waits and (signals.room or 0.0) >= limits.room:
        if compute_ruling(signals, limits) is not None:
            return None
        return Ruling(Reason.QUOTA, f"{told} were refused by a limit at the door, and nobody waits{_room(signals)}")
    told += f" were refused at the door: the queue is full{_room(signals)}"
    if signals.sender_share is None or (signals.senders or 0) < 2:
        return Ruling(Reason.OVERLOAD, told)
    sent = f"tenant {signals.sender!r}, one of {signals.senders}, sent {percent(signals.sender_share)} of the arrivals"
    one = signals.sender_share >= limits.one_tenant
    return Ruling(Reason.TENANT_OVERLOAD if one else Reason.OVERLOAD, f"{told}; {sent}")


def _pool_is_not_it(signals: Signals, limits: Thresholds) -> bool:
    if signals.room is None or signals.room < limits.room or signals.wait is None:
        return False
    wait = signals.wait
    return max(wait.batch_slots, wait.token_budget, wait.quota, wait.step) > wait.pool


def _room(signals: Signals) -> str:
    return "" if signals.used is None else f"; {percent(signals.used)} of the pool is held"
