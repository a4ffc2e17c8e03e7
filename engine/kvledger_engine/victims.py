"""Who gives way: pure choices over numbers. Releases nothing, knows no pool and no clock.

Two occasions. Where what runs finds no room to grow, one after the other gives way in `order_of_sacrifice` until it
does. Where a request of a higher class wants in, `may_give_way` says who might, and `fewest` who does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.views import F64, I64, U8, U64
from kvledger.words import RequestClass

PRIORITY: NDArray[np.int8] = np.zeros(len(RequestClass), np.int8)
"""Priority by request class; the higher one stays longer."""
PRIORITY[RequestClass.BATCH] = 0
PRIORITY[RequestClass.DEFAULT] = 1
PRIORITY[RequestClass.INTERACTIVE] = 2
GIVES_WAY = 2
"""Preemptions after which a sequence gives way to no admission any more, so that it gets done."""

Suffices = Callable[[I64], bool]
"""Whether so many are enough, by their indices. More of them must never be less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Running sequences, one element each: U8 classes, tenants' columns, how often each was preempted."""

    request_class: U8
    tenant: NDArray[np.int16]
    preemptions: NDArray[np.integer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenants:
    """F64[columns]: priorities, positions in the fair share (greater has had more), blocks held and reserved."""

    priority: F64
    position: F64
    held: F64
    reserved: F64


def order_of_sacrifice(request_classes: U8, serials: U64, tenant_priorities: F64 | None = None) -> I64:
    """Indices, the first to give way first: lowest priority of tenant, then of class, then greatest serial.

    Serials differ, so the order is total and never changes: whoever comes last in it is not preempted, and gets done.
    """
    latest_first = np.argsort(serials)[::-1]
    order = latest_first[np.argsort(PRIORITY[request_classes[latest_first]], kind="stable")]
    if tenant_priorities is None:
        return order
    return order[np.argsort(tenant_priorities[order], kind="stable")]


def levels(request_classes: U8, tenant_priorities: F64) -> F64:
    """What is compared before age: who has a lower one goes first, in `order_of_sacrifice`'s sense."""
    return tenant_priorities * len(PRIORITY) + PRIORITY[request_classes]


def may_give_way(running: Candidates, tenants: Tenants, *, column: int, kind: int) -> NDArray[np.bool_]:
    """Who may give way to a request of a tenant and a class: always of a lower class, and left alone after GIVES_WAY.

    Of the same tenant; else of one that holds more than it has reserved, and that has a lower priority or, at an
    equal one, had more than its share.
    """
    columns, mine = running.tenant, tenants.priority[column]
    lower = PRIORITY[running.request_class] < PRIORITY[kind]
    below = tenants.priority[columns] < mine
    behind = (tenants.priority[columns] == mine) & (tenants.position[columns] > tenants.position[column])
    outside = tenants.held[columns] > tenants.reserved[columns]
    others: NDArray[np.bool_] = (below | behind) & outside
    chosen: NDArray[np.bool_] = lower & (running.preemptions < GIVES_WAY) & ((columns == column) | others)
    return chosen


def fewest(level: F64, gains: F64, suffices: Suffices) -> I64:
    """Indices of those who give way, in order; none if all together are not enough.

    Both arrays are in the order of sacrifice. Nobody of a higher level does where those below are enough. Among the
    rest: the fewest, nobody in vain, and of several who would do the first in order. They are the fewest wherever
    being enough is a sum of `gains`; where it is more than that, still nobody is in vain.
    """
    everybody = np.arange(len(level))
    if not len(level) or not suffices(everybody):
        return everybody[:0]
    reached = level[_least(everybody, suffices) - 1]
    eligible = everybody[level <= reached]
    by_gain = eligible[np.argsort(-gains[eligible], kind="stable")]
    chosen = spare(by_gain[: _least(by_gain, suffices)], suffices)
    return spare(_earliest(chosen, eligible, gains, suffices), suffices)


def spare(chosen: I64, suffices: Suffices) -> I64:
    """Those without whom it would not be enough, in order; whoever would stay longest is spared first.

    A loop over victims, who are few.
    """
    kept = np.sort(chosen)
    for index in kept[::-1].tolist():
        rest = kept[kept != index]
        if suffices(rest):
            kept = rest
    return kept


def _least(order: I64, suffices: Suffices) -> int:
    """How many from the front of `order` are enough, all of them being so: by halving."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if suffices(order[:middle]):
            high = middle
        else:
            low = middle + 1
    return low


def _earliest(chosen: I64, eligible: I64, gains: F64, suffices: Suffices) -> I64:
    """As many, but each replaced by the first in order who does instead: who stays longest is replaced first.

    Looked for by halving among those who gain enough to be worth a look, which is exact where gains add up.
    """
    kept = chosen
    for index in kept[::-1].tolist():
        rest = kept[kept != index]
        instead = eligible[(eligible < index) & ~np.isin(eligible, rest)]
        instead = instead[np.argsort(-gains[instead], kind="stable")]
        enough = instead[: _enough(instead, rest, suffices)]
        if len(enough):
            kept = np.sort(np.append(rest, enough.min()))
    return kept


def _enough(by_gain: I64, rest: I64, suffices: Suffices) -> int:
    """How many from the front of `by_gain`, the greatest gain first, are enough alone with `rest`."""
    low, high = 0, len(by_gain)
    while low < high:
        middle = (low + high) // 2
        if suffices(np.append(rest, by_gain[middle])):
            low = middle + 1
        else:
            high = middle
    return low
