"""Turns: in which order lanes may bring their next request in. A choice over numbers; admits nobody.

First whoever stays within its own reservation, then by the tenant's priority, then by fair share, then by class within
the tenant, then whoever came first. A class that its tenant's others have passed for PASSES times goes before them.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvledger.views import F64, U64
from kvledger_engine.budgets import Standing
from kvledger_engine.lanes import Lane
from kvledger_engine.victims import PRIORITY

PASSES = 32
_CLASS_ORDER = [-int(priority) for priority in PRIORITY]


def in_turn(
    lanes: Iterable[Lane],
    *,
    blocks: dict[int, int],
    standing: Standing,
    positions: F64,
    priorities: F64,
    serials: U64,
) -> list[Lane]:
    """Lanes, the first to be served first. `blocks` are what each lane's head takes at most, by lane number.

    A loop over lanes: at most one for every tenant and class of which somebody waits.
    """
    keys = []
    for lane in lanes:
        column = lane.column
        keys.append(
            (
                not standing.is_within_reserve(column, blocks[lane.number]),
                -priorities.item(column),
                positions.item(column),
                lane.passed < PASSES,
                _CLASS_ORDER[lane.kind],
                serials.item(lane.head.item(0)),
                lane,
            )
        )
    keys.sort(key=lambda key: key[:-1])
    return [key[-1] for key in keys]


def count_passes(lanes: Iterable[Lane], served: Lane) -> None:
    """A lane had its turn: those of the tenant's other classes were passed."""
    served.passed = 0
    for lane in lanes:
        if lane.column == served.column and lane is not served:
            lane.passed += 1
