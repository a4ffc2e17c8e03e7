"""Requests wait for a limit of the scheduler while the pool has room, or for an allocator that is slow. Pure."""

from __future__ import annotations

from kvledger.words import Reason
from kvledger_agent.verdict.pool_rules import holder_ruling
from kvledger_agent.verdict.rulings import Ruling, percent
from kvledger_agent.verdict.signals import Signals
from kvledger_agent.verdict.thresholds import Thresholds


def allocation_ruling(signals: Signals, limits: Thresholds) -> Ruling | None:
    """Allocations take a good part of all steps though blocks are free; None where not, or where it is not measured."""
    if signals.allocating is None or signals.allocating < limits.allocating:
        return None
    if signals.room is None or signals.room < limits.room:
        return None
    return Ruling(
        Reason.SLOW_ALLOCATION,
        f"{percent(signals.allocating)} of the steps' time is spent in the allocator while {percent(signals.room)} of "
        "the pool is free or cached",
    )


def scheduler_ruling(signals: Signals, kind: str, waited: float, limits: Thresholds) -> Ruling:
    """The limit that most of the waiting is for, unless the pool is full behind it."""
    if kind != "quota" and signals.room is not None and signals.room < limits.full:
        return holder_ruling(signals, waited, limits)
    told = f"{percent(waited)} of request time is waiting for"
    room = f"while {percent(signals.room)} of the pool has room"
    if kind == "batch_slots":
        return Ruling(Reason.BATCH_SLOTS, f"{told} max_num_seqs={_number(signals.max_num_seqs)} {room}")
    if kind == "token_budget":
        return Ruling(
            Reason.TOKEN_BUDGET, f"{told} max_num_batched_tokens={_number(signals.max_num_batched_tokens)} {room}"
        )
    return Ruling(Reason.QUOTA, f"{told} budgets of tenants and classes {room}")


def _number(limit: int | None) -> str:
    return "unknown" if limit is None else f"{limit}"
