"""Reuse: which of a lane's oldest requests goes first, where the class looks for cached prefixes. Admits nobody.

Of the first few the one with the longest cached prefix goes first; the oldest is passed PASSES times at most.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from kvledger.views import I32
from kvledger.words import RequestState
from kvledger.writer import Ledger
from kvledger_engine.turns import PASSES
from kvledger_engine.waits import Lane


class ReuseWindow:
    """The choice within lanes. `cached_tokens` says how many tokens of a leader's sequence are cached."""

    def __init__(self, ledger: Ledger, cached_tokens: Callable[[int], int]) -> None:
        self._slots, self._cached_tokens = ledger.slots, cached_tokens
        self._passed: dict[int, tuple[int, int]] = {}

    def order(self, lane: Lane, window: int, seats: int) -> list[I32]:
        """The groups that may be next: of a lane's first `window` the one to prefer, and its head, for which there are
        `seats`, where the other finds no room.

        A head that was preempted goes first: behind it are only such that have computed nothing yet.
        """
        head = lane.head
        if window == 1 or len(lane.entries) == 1 or self._passes(lane) >= PASSES:
            return [head]
        if self._slots.state[head[0]] in (RequestState.PREEMPTED, RequestState.SWAPPED):
            return [head]
        groups = [group for group in islice(lane.entries.values(), window) if len(group) <= seats]
        hits = [self._cached_tokens(group.item(0)) for group in groups]
        chosen = groups[hits.index(max(hits))]
        return [head] if chosen is head else [chosen, head]

    def admitted(self, lane: Lane, group: I32) -> None:
        """A group of a lane is about to leave it for the running set."""
        if group is not lane.head:
            self._passed[lane.number] = (self._serial(lane), self._passes(lane) + 1)

    def _passes(self, lane: Lane) -> int:
        serial, passes = self._passed.get(lane.number, (0, 0))
        return passes if serial == self._serial(lane) else 0

    def _serial(self, lane: Lane) -> int:
        return self._slots.serial.item(lane.head.item(0))
