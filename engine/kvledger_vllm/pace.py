"""The ledger's token clocks in the mirror: in most steps one word counts a token of every running request.

Who goes by a clock is known here; that they all go on by one token is for the caller to know. A slot is stamped before
it begins or ends to go by one, since then several of its words change together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.pace import Pace
from kvledger.writer import Ledger

_COMPUTED, _GENERATED = CONTROL_INDEX["pace_computed"], CONTROL_INDEX["pace_generated"]
_TOKEN_NS = CONTROL_INDEX["pace_token_ns"]


class TokenClock:
    """One of the clocks, and the slots that go by it."""

    def __init__(self, ledger: Ledger, which: Pace) -> None:
        slots, computed = ledger.slots, which is Pace.COMPUTED
        self._ledger, self._slots, self._bit = ledger, slots, int(which)
        self._words, self._word = ledger.control.data, _COMPUTED if computed else _GENERATED
        self._since = slots.pace_computed if computed else slots.pace_generated
        self._counts = slots.computed_tokens if computed else slots.output_tokens
        # The same memory again: stores of single numbers go through views of it.
        self._of_slot: tuple[Any, ...] = (
            slots.changed_seq.data, self._since.data, self._counts.data, slots.pace.data, slots.last_token_ns.data,
        )  # fmt: skip
        self.slots: set[int] = set()
        """Who goes by it."""
        self.total = 0
        """The sum of their counts."""

    @property
    def now(self) -> int:
        """What it says."""
        said: int = self._words[self._word]
        return said

    def count(self, slot: int) -> int:
        """The count of a slot that goes by it."""
        tokens: int = self._counts.item(slot) + self.now - self._since.item(slot)
        return tokens

    def join(self, slot: int) -> None:
        """A slot, whose count is exact now, goes by it from now on."""
        stamps, since, counts, pace, _ = self._of_slot
        stamps[slot] = self._ledger.seq
        since[slot] = self._words[self._word]
        pace[slot] |= self._bit
        self.slots.add(slot)
        self.total += counts[slot]

    def tick(self) -> None:
        """Everybody goes on by one token."""
        self._words[self._word] += 1
        self.total += len(self.slots)
        if self._word == _GENERATED:
            self._words[_TOKEN_NS] = self._ledger.now_ns

    def leave(self, slot: int) -> None:
        """A slot goes by it no more, if it did: its count is in the slot."""
        if slot not in self.slots:
            return
        stamps, since, counts, pace, last_token_ns = self._of_slot
        stamps[slot] = self._ledger.seq
        moved = self._words[self._word] - since[slot]
        counts[slot] += moved
        if moved and self._word == _GENERATED:
            last_token_ns[slot] = self._words[_TOKEN_NS]
        pace[slot] &= ~self._bit & 0xFF
        self.slots.remove(slot)
        self.total -= counts[slot]

    def stop(self) -> None:
        """Nobody goes by it any more."""
        if not self.slots:
            return
        view, slots = self._slots, np.fromiter(self.slots, np.intp, len(self.slots))
        view.changed_seq[slots] = self._ledger.seq_value
        moved = self._words[self._word] - self._since[slots]
        self._counts[slots] += moved.astype(np.int32)
        if self._word == _GENERATED:
            view.last_token_ns[slots[moved > 0]] = self._words[_TOKEN_NS]
        view.pace[slots] &= np.uint8(~self._bit & 0xFF)
        self.slots.clear()
        self.total = 0
