"""Which tokens end which sequence, asked for a whole batch at once. Knows no request; a slot is a number here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.views import I32, I64

_TOKEN_BITS = 32


class StopTokens:
    """Stop tokens by slot, as one array of (slot, token) keys, put together when it is asked for after a change."""

    def __init__(self) -> None:
        self._by_slot: dict[int, I64] = {}
        self._keys: I64 | None = None

    def __len__(self) -> int:
        return len(self._by_slot)

    def keep(self, slots: I32, tokens: list[int]) -> None:
        """Let each of `tokens` end each of `slots`."""
        if not tokens:
            return
        ends = np.array(tokens, np.int64)
        self._by_slot |= {slot: (slot << _TOKEN_BITS) + ends for slot in slots.tolist()}
        self._keys = None

    def forget(self, slot: int) -> None:
        """The slot is empty; none of its stop tokens counts any more."""
        if self._by_slot.pop(slot, None) is not None:
            self._keys = None

    def drawn(self, slots: I32, tokens: I32) -> NDArray[np.bool_]:
        """Which of the slots drew one of their stop tokens: bool[m] for tokens I32[m]."""
        if not self._by_slot:
            return np.zeros(len(slots), bool)
        if self._keys is None:
            self._keys = np.concatenate(list(self._by_slot.values()))
        return np.isin((slots.astype(np.int64) << _TOKEN_BITS) + tokens, self._keys)
