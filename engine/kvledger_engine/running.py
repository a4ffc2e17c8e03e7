"""The running set: the sequences that hold blocks and compute, in the order of their admission. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import NS_PER_SECOND
from kvledger.views import F64, I32
from kvledger.words import RequestState
from kvledger.writer import Ledger
from kvledger_engine.request import RequestTable

_EMPTY: I32 = np.zeros(0, np.int32)


class RunningSet:
    """`slots` of the running set. It is replaced, never changed: the same array means that nothing has changed.

    `on_end` is told for how many seconds those that ended had held blocks.
    """

    def __init__(self, ledger: Ledger, requests: RequestTable, on_end: Callable[[F64], None] | None = None) -> None:
        self._ledger, self._slots, self._requests, self._on_end = ledger, ledger.slots, requests, on_end
        self.slots: I32 = _EMPTY

    def __len__(self) -> int:
        return len(self.slots)

    def add(self, group: I32) -> None:
        """Sequences were admitted."""
        self.slots = np.concatenate((self.slots, group))

    def drop_ended(self) -> None:
        """Take out everything that is not in state RUNNING any more."""
        states = self._slots.state[self.slots]
        if self._on_end is not None:
            since_ns = self._slots.first_block_ns[self.slots[states == RequestState.FINISHED]]
            since_ns = since_ns[since_ns > 0]  # one that was to be forked held nothing
            if len(since_ns):
                self._on_end((self._ledger.now_ns - since_ns) / NS_PER_SECOND)
        self.slots = self.slots[states == RequestState.RUNNING]

    def ready(self) -> I32:
        """The running set without sequences that are yet to be forked."""
        if not self._requests.unforked:
            return self.slots
        return self.slots[~self._requests.awaits_fork[self.slots]]

    def lengths(self, slots: I32) -> I32:
        """Tokens of each sequence, prompt and output."""
        return self._slots.prompt_tokens[slots] + self._slots.output_tokens[slots]

    def partial(self) -> tuple[I32, I32]:
        """Sequences whose prompt is not computed yet, not even in the step that is planned, and their lengths."""
        ready = self.ready()
        partial = ready[self.are_partial(ready)]
        return partial, self.lengths(partial)

    def are_partial(self, slots: I32) -> NDArray[np.bool_]:
        """Of which sequences of the set a part of the prompt is to be computed yet."""
        partial: NDArray[np.bool_] = self._slots.computed_tokens[slots] < self.lengths(slots) - 1
        return partial
