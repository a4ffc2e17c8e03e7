"""The ledger's token clocks in the mirror: in the usual step one word counts a token of every running request.

Who goes by a clock is known here; that they all go on by one token is for the caller to know. Slots are stamped before
they begin or end to go by one, since then several of their words change together.
"""

from __future__ import annotations

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.pace import Pace
from kvledger.views import I32, I64
from kvledger.writer import Ledger
from kvledger_vllm.requests import Ids

_COMPUTED, _TOKEN_NS = CONTROL_INDEX["pace_computed"], CONTROL_INDEX["pace_token_ns"]


class TokenClock:
    """One of the clocks, and the slots that go by it."""

    def __init__(self, ledger: Ledger, which: Pace) -> None:
        slots, computed = ledger.slots, which is Pace.COMPUTED
        self._ledger, self._slots, self._bit = ledger, slots, np.uint8(which)
        self._since: I64 = slots.pace_computed if computed else slots.pace_generated
        self._counts: I32 = slots.computed_tokens if computed else slots.output_tokens
        self._words = ledger.control.data
        self._word = CONTROL_INDEX["pace_computed" if computed else "pace_generated"]
        self._going: Ids | None = None

    @property
    def runs(self) -> bool:
        """Whether anybody goes by it."""
        return self._going is not None

    def begin(self, slots: Ids) -> None:
        """These slots, whose counts are exact now, go by it from now on. Nobody does yet."""
        assert self._going is None
        self._slots.changed_seq[slots] = self._ledger.seq_value
        self._since[slots] = self._words[self._word]
        self._slots.pace[slots] |= self._bit
        self._going = slots

    def tick(self) -> None:
        """Everybody goes on by one token."""
        self._words[self._word] += 1
        if self._word != _COMPUTED:
            self._words[_TOKEN_NS] = self._ledger.now_ns

    def end(self) -> None:
        """Nobody goes by it any more: the counts are in their slots."""
        slots = self._going
        if slots is None:
            return
        self._going = None
        view = self._slots
        view.changed_seq[slots] = self._ledger.seq_value
        moved = self._words[self._word] - self._since[slots]
        self._counts[slots] += moved.astype(np.int32)
        if self._word != _COMPUTED and moved[0]:
            view.last_token_ns[slots] = self._words[_TOKEN_NS]
        view.pace[slots] &= ~self._bit
