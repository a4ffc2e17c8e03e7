"""PrefillPace: how long a prompt token takes here, measured. Owns two gauges; knows no request."""

from __future__ import annotations

import numpy as np

from kvledger.writer import Ledger
from kvledger_engine.batch import Batch


class PrefillPace:
    """Seconds and tokens of steps half or more of whose tokens are prompts'; the time goes to tokens in equal parts.

    A row of one token is a decode. Other steps tell of decodes, and count as nothing.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._values = ledger.stats.values
        self._seconds, self._tokens = (ledger.stats.gauge(f"prefill_{what}") for what in ("seconds", "tokens"))

    def note(self, batch: Batch, seconds: float) -> None:
        """A batch was computed in so many seconds."""
        total = len(batch.tokens)
        if total == len(batch.slots):
            return
        prompts = total - int(np.count_nonzero(batch.counts == 1))
        if 2 * prompts >= total > 0:
            self._values[self._seconds] += seconds * prompts / total
            self._values[self._tokens] += prompts
