"""Requests wait for the pool: who or what holds it. Pure."""

from __future__ import annotations

from kvledger.words import Reason
from kvledger_agent.verdict.rulings import SECOND_LOOK, Ruling, percent
from kvledger_agent.verdict.signals import Signals
from kvledger_agent.verdict.thresholds import Thresholds


def thrash_ruling(signals: Signals, limits: Thresholds) -> Ruling | None:
    """Preempted work is done again and again; None where it is not, or is not counted."""
    again, new = signals.recomputed_tokens, signals.new_tokens
    if not again or new is None or not signals.preemptions or again < limits.recomputed * new:
        return None
    return Ruling(
        Reason.PREEMPTION_THRASH,
        f"{signals.preemptions:.0f} preemptions in {signals.span_seconds:.0f} s: {again:.0f} tokens were computed "
        f"again and {new:.0f} for the first time",
    )


def holder_ruling(signals: Signals, waited: float, limits: Thresholds) -> Ruling:
    """Why the pool is what requests wait for; `waited` is the part of request time that went to it."""
    if not signals.holders_known:
        return Ruling(
            Reason.MISSING_SIGNALS,
            f"{percent(waited)} of request time was waiting for blocks; nobody waits now, and one look cannot tell who "
            "held them then",
            missing=(SECOND_LOOK,),
        )
    told = f"{percent(waited)} of request time is waiting for blocks, of which {percent(signals.used)} are held"
    return (
        _head_of_line(signals, waited, limits)
        or _retained(signals, told, limits)
        or _shared(signals, told, limits)
        or _tenant(signals, told, limits)
        or _sizes(signals, told, limits)
    )


def _head_of_line(signals: Signals, waited: float, limits: Thresholds) -> Ruling | None:
    head, others = signals.head, signals.held_up
    if head is None or others is None or others < limits.held_up:
        return None
    return Ruling(
        Reason.HEAD_OF_LINE,
        f"{percent(waited)} of request time is waiting behind a head that needs {head.head_blocks} blocks where "
        f"{max(0, head.room_blocks)} are to be had: {percent(others)} of those behind it would fit",
    )


def _retained(signals: Signals, told: str, limits: Thresholds) -> Ruling | None:
    if signals.pinned_share is None or signals.pinned_share < limits.retained:
        return None
    return Ruling(
        Reason.RETAINED_PREFIXES, f"{told}: {percent(signals.pinned_share)} of the pool by pins, in no live table"
    )


def _shared(signals: Signals, told: str, limits: Thresholds) -> Ruling | None:
    if signals.shared_share is None or signals.shared_share < limits.most:
        return None
    return Ruling(Reason.SHARED_PREFIXES, f"{told}: {percent(signals.shared_share)} of those by prefixes in live use")


def _tenant(signals: Signals, told: str, limits: Thresholds) -> Ruling | None:
    share = signals.tenant_share
    if share is None or (signals.tenants or 0) < 2 or share < limits.one_tenant:
        return None
    return Ruling(
        Reason.ONE_TENANT, f"{told}: {percent(share)} of those by tenant {signals.tenant!r}, one of {signals.tenants}"
    )


def _sizes(signals: Signals, told: str, limits: Thresholds) -> Ruling:
    """Few long requests, or many ordinary ones."""
    if signals.long_share is not None and signals.long_share >= limits.most:
        return Ruling(
            Reason.LONG_REQUESTS,
            f"{told}: {percent(signals.long_share)} of those by {signals.long_requests:.1f} requests that each hold a "
            "tenth of the pool or more",
        )
    return Ruling(Reason.MANY_REQUESTS, f"{told}, by {signals.running or 0:.0f} running requests of ordinary size")
