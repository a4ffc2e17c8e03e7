"""The time to the first token and between tokens, in seconds: histograms, the slots' times of tokens, one event."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import NS_PER_SECOND
from kvledger.words import Event, RequestClass
from kvledger.writer import Ledger


class Latencies:
    """Owns `first_token_ns` and `last_token_ns`. Counts no token."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._slots = ledger, ledger.slots
        kind = {"class": RequestClass.DEFAULT.word}
        self._first = ledger.stats.histogram("time_to_first_token", **kind)
        self._gap = ledger.stats.histogram("inter_token_latency", **kind)

    def went_on(self, slots: NDArray[np.intp], first: NDArray[np.bool_]) -> None:
        """Distinct requests got one token each; `first`: it is their first one."""
        now, last = self._ledger.now_ns, self._slots.last_token_ns
        self._gap.observe_many((now - last[slots[~first]]) / NS_PER_SECOND)
        for slot in slots[first].tolist():
            self._first_token(slot)
        last[slots] = now

    def went_on_in_step(self, slots: NDArray[np.intp], times_ns: list[int]) -> None:
        """Distinct requests that have a token got one each at each of some times, in nanoseconds."""
        last = self._slots.last_token_ns
        self._gap.observe_many((times_ns[0] - last[slots]) / NS_PER_SECOND)
        for before, now in pairwise(times_ns):
            self._gap.observe((now - before) / NS_PER_SECOND, len(slots))
        last[slots] = times_ns[-1]

    def one_went_on(self, slot: int, tokens: int, *, first: bool) -> None:
        """A request got that many tokens at once."""
        if first:
            self._first_token(slot)
        else:
            elapsed_ns = self._ledger.now_ns - self._slots.last_token_ns[slot]
            self._gap.observe(float(elapsed_ns) / NS_PER_SECOND / tokens, tokens)
        self._slots.last_token_ns[slot] = self._ledger.now_ns

    def _first_token(self, slot: int) -> None:
        slots, now = self._slots, self._ledger.now_ns
        slots.first_token_ns[slot] = now
        self._first.observe((now - slots.arrived_ns.item(slot)) / NS_PER_SECOND)
        self._ledger.event(Event.FIRST_TOKEN, slots.serial.item(slot), blocks=int(slots.table_blocks[slot].sum()))
