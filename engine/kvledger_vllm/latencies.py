"""The time to the first token and between tokens, in seconds: histograms, the slots' times of tokens, one event."""

from __future__ import annotations

from kvledger.words import Event, RequestClass
from kvledger.writer import Ledger
from kvledger_vllm.cells import Cells
from kvledger_vllm.delayed import Delayed

_NS_PER_SECOND = 1e9


class Latencies:
    """Owns `first_token_ns`, and `last_token_ns` of slots that go by no token clock. Counts no token."""

    def __init__(self, ledger: Ledger, delayed: Delayed) -> None:
        self._ledger, self._slots = ledger, Cells(ledger.slots)
        kind = {"class": RequestClass.DEFAULT.word}
        self._first = ledger.stats.histogram("time_to_first_token", **kind)
        self._gap = ledger.stats.histogram("inter_token_latency", **kind)
        self._gaps = delayed.of(self._observe)
        self._since_ns = 0

    def all_went_on(self, count: int) -> None:
        """`count` requests got one token each, all of which had their last one in the update before this one."""
        self._gaps((self._ledger.now_ns - self._since_ns, count))

    def updated(self) -> None:
        """An update that handed out tokens is over."""
        self._since_ns = self._ledger.now_ns

    def one_went_on(self, slot: int, tokens: int, *, first: bool) -> None:
        """A request got that many tokens at once; `first`: they are its first ones."""
        if first:
            self._first_token(slot)
        else:
            elapsed_ns = self._ledger.now_ns - self._slots.last_token_ns[slot]
            self._gap.observe(elapsed_ns / _NS_PER_SECOND / tokens, tokens)
        self._slots.last_token_ns[slot] = self._ledger.now_ns

    def _first_token(self, slot: int) -> None:
        slots, now = self._slots, self._ledger.now_ns
        slots.first_token_ns[slot] = now
        self._first.observe((now - slots.arrived_ns[slot]) / _NS_PER_SECOND)
        blocks = int(slots.table_blocks[slot].sum())
        self._ledger.event(Event.FIRST_TOKEN, slots.serial[slot], blocks=blocks)

    def _observe(self, ns_and_count: tuple[int, int]) -> None:
        self._gap.observe(ns_and_count[0] / _NS_PER_SECOND, ns_and_count[1])
