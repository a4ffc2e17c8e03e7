"""Pricing: what tenants' block-seconds cost at the configured price of the whole pool for an hour.

Owns which block-seconds have been priced, and the counter `cost_total`.
"""

from __future__ import annotations

from kvledger.writer import Ledger
from kvledger_engine.config import EngineConfig

_SECONDS_PER_HOUR = 3600


class Pricing:
    """The cost that one engine counts. What a predecessor held is priced already."""

    def __init__(self, config: EngineConfig, ledger: Ledger) -> None:
        self._config = config
        self._cost = ledger.stats.tenant_counter("cost_total")
        self._block_seconds = ledger.stats.tenant_counter("block_seconds_total")
        self._priced = self._block_seconds.copy()

    def price(self) -> None:
        """Turn new block-seconds into cost; those of the last publication, since its end is when they are counted."""
        if self._config.price_per_hour is None:
            return
        held = self._block_seconds - self._priced
        self._cost += held * (self._config.price_per_hour / _SECONDS_PER_HOUR / self._config.capacity_blocks)
        self._priced = self._block_seconds.copy()
