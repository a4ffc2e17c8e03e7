"""Signals -> the ruling: which limit is what requests wait for, and why. Pure.

The order is what goes before what: whom nobody lets in cannot wait; work that is lost comes before who holds the pool;
what most of the waiting is for names the limit. What would decide and is not known is named instead.
"""

from __future__ import annotations

from kvledger.words import Reason
from kvledger_agent.verdict.compute_rules import compute_ruling, idle_or_full
from kvledger_agent.verdict.door_rules import refused_at_the_door
from kvledger_agent.verdict.page_rules import page_ruling
from kvledger_agent.verdict.pool_rules import holder_ruling, thrash_ruling
from kvledger_agent.verdict.rulings import Ruling, percent
from kvledger_agent.verdict.scheduler_rules import allocation_ruling, scheduler_ruling
from kvledger_agent.verdict.signals import Signals, Wait
from kvledger_agent.verdict.thresholds import DEFAULT, Thresholds


def rule(signals: Signals, limits: Thresholds = DEFAULT) -> Ruling:
    """The ruling on an engine that lives, moves and leaks nothing."""
    found = refused_at_the_door(signals, limits) or thrash_ruling(signals, limits) or allocation_ruling(signals, limits)
    if found is not None:
        return found
    if signals.wait is None:
        return page_ruling(signals, limits)
    return _by_waits(signals, signals.wait, limits) or compute_ruling(signals, limits) or idle_or_full(signals, limits)


def _by_waits(signals: Signals, wait: Wait, limits: Thresholds) -> Ruling | None:
    """What most of the waiting is for, if requests wait at all."""
    kinds = {"pool": wait.pool, "batch_slots": wait.batch_slots, "token_budget": wait.token_budget, "quota": wait.quota}
    kinds["elsewhere"] = wait.elsewhere
    kind = max(kinds, key=lambda name: kinds[name])
    if kinds[kind] < limits.waits or kinds[kind] * (signals.request_seconds_per_second or 0.0) < limits.waiters:
        return None
    if kind == "pool":
        return holder_ruling(signals, wait.pool, limits)
    if kind == "elsewhere":
        return Ruling(
            Reason.MISSING_SIGNALS,
            f"{percent(wait.elsewhere)} of request time is waiting for what is no limit of this engine: paused, remote "
            "KV, a grammar or an adapter",
            missing=("what deferred and paused requests wait for",),
        )
    return scheduler_ruling(signals, kind, kinds[kind], limits)
