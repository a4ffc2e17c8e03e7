"""From what size on a signal says something: every number that a ruling compares with. Owns the numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """All are shares of 1 unless they say otherwise.

    `waits`: of request time, above which waiting is what is wrong, if so many requests as `waiters` wait on average.
    `room`: of the pool, free or cached, above which it has room; `full`: below which it is full.
    `page_full`: below which a page alone says that requests wait for it.
    `refused`: of arrivals; `refused_least` in requests.
    `recomputed`: tokens computed again ÷ tokens computed for the first time.
    `most`: of the active blocks; `one_tenant`: of them, or of the arrivals, by one of several
    tenants; `retained`: of the pool, by pins.
    `held_up`: of those who wait behind the head for the pool and would fit.
    `busy`: of the window in which the model is at work; `slots`: of a step's sequences, or tokens, that are used.
    `allocating`: of the time of steps.
    """

    waits: float = 0.1
    waiters: float = 0.1
    room: float = 0.2
    full: float = 0.1
    page_full: float = 0.05
    refused: float = 0.5
    refused_least: float = 5.0
    recomputed: float = 0.5
    most: float = 0.5
    one_tenant: float = 0.6
    retained: float = 0.3
    held_up: float = 0.4
    busy: float = 0.75
    slots: float = 0.5
    allocating: float = 0.2


DEFAULT = Thresholds()
