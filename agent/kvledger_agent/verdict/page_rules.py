"""An engine seen through its page alone, which says neither what requests wait for nor how long steps take. Pure.

What a page can prove is told, with how sure it is; what it cannot is named, so that nobody acts on a guess.
"""

from __future__ import annotations

from kvledger.words import Certainty, Reason
from kvledger_agent.verdict.compute_rules import idle_or_full
from kvledger_agent.verdict.holders import LONG_SHARE
from kvledger_agent.verdict.rulings import Ruling, percent
from kvledger_agent.verdict.signals import Signals
from kvledger_agent.verdict.thresholds import Thresholds

WAIT_CAUSES = "wait causes"


def page_ruling(signals: Signals, limits: Thresholds) -> Ruling:
    """As far as the pool, the queue and preemptions decide."""
    waiting, running = signals.waiting, signals.running
    if waiting is None or running is None:
        return Ruling(
            Reason.MISSING_SIGNALS,
            "how many requests run and wait is not reported",
            missing=("requests running", "requests waiting"),
        )
    if waiting < limits.waits * (waiting + running) or not waiting:
        return idle_or_full(signals, limits)
    return _deferred(signals, waiting) or _pool(signals, waiting, limits) or _unknown(signals, waiting)


def _deferred(signals: Signals, waiting: float) -> Ruling | None:
    """Most of those that wait do so for what no limit of this engine gives out."""
    if signals.deferred is None or 2 * signals.deferred < waiting:
        return None
    return Ruling(
        Reason.MISSING_SIGNALS,
        f"{signals.deferred:.1f} of {waiting:.1f} requests that wait on average are deferred: for remote KV, a grammar "
        "or an adapter",
        missing=("what deferred and paused requests wait for",),
    )


def _pool(signals: Signals, waiting: float, limits: Thresholds) -> Ruling | None:
    """The pool is what they wait for: it ran out and preempted somebody, or there is hardly a block left to give."""
    if signals.room is None or signals.room >= limits.room:
        return None
    ran_out = bool(signals.preemptions)
    if not ran_out and signals.room >= limits.page_full:
        return None
    running = signals.running or 0.0
    told = (
        f"{waiting:.1f} requests wait on average, {percent(signals.used)} of the pool is held by {running:.1f} that run"
    )
    if ran_out:
        told += f", and it ran out {signals.preemptions:.0f} times in {signals.span_seconds:.0f} s"
    sure = Certainty.CERTAIN if ran_out else Certainty.LIKELY
    few = running * LONG_SHARE < limits.most
    return Ruling(
        Reason.LONG_REQUESTS if few else Reason.MANY_REQUESTS,
        f"{sure.word}: {told}; by which of them, or by which tenant, is not reported",
        missing=(WAIT_CAUSES, "blocks by request", "blocks by tenant"),
    )


def _unknown(signals: Signals, waiting: float) -> Ruling:
    if signals.room is None:
        return Ruling(
            Reason.MISSING_SIGNALS,
            f"{waiting:.1f} requests wait on average, and how full the pool is is not reported",
            missing=("blocks free or kept for reuse", WAIT_CAUSES),
        )
    return Ruling(
        Reason.MISSING_SIGNALS,
        f"{waiting:.1f} requests wait on average though {percent(signals.room)} of the pool has room; what for is not "
        "reported",
        missing=(WAIT_CAUSES,),
    )
