"""Attempts: batches given to the compute, whose failures are an answer like any other. Changes no request.

Owns whether the compute has been lost.
"""

from __future__ import annotations

import logging

from kvledger.views import I32
from kvledger.words import FinishReason
from kvledger.writer import Ledger
from kvledger_engine.batch import Batch, Compute
from kvledger_engine.errors import ComputeLost

logger = logging.getLogger(__name__)


class Attempts:
    """The compute of one engine. `lost` once it has said that it can do no further step."""

    def __init__(self, ledger: Ledger, compute: Compute) -> None:
        self._ledger, self._compute, self.lost = ledger, compute, False

    def execute(self, batch: Batch) -> I32 | FinishReason:
        """The samples of a batch, or how its requests end if the compute fails."""
        try:
            sampled = self._compute.execute(batch)
            if sampled.shape != batch.sample_slots.shape:
                raise ValueError(f"{sampled.shape} tokens for {batch.sample_slots.shape} samples")
        except MemoryError:
            logger.exception("step=%d rows=%d end=out_of_memory", self._ledger.seq, len(batch.slots))
            return FinishReason.OUT_OF_MEMORY
        except ComputeLost:
            logger.exception("step=%d rows=%d end=engine_error compute=lost", self._ledger.seq, len(batch.slots))
            self.lost = True
            return FinishReason.ENGINE_ERROR
        except Exception:
            logger.exception("step=%d rows=%d end=engine_error", self._ledger.seq, len(batch.slots))
            return FinishReason.ENGINE_ERROR
        return sampled
