"""Which cache an engine has: the paged one, or a baseline of contiguous runs. Chooses; allocates nothing."""

from __future__ import annotations

from kvledger.writer import Ledger
from kvledger_engine.allocation import Allocation
from kvledger_engine.config import EngineConfig
from kvledger_engine.contiguous import ContiguousCache
from kvledger_engine.errors import BadConfig
from kvledger_engine.evict import Eviction
from kvledger_engine.faults import FaultPlan
from kvledger_engine.kvcache import KvCache


def make_cache(config: EngineConfig, ledger: Ledger, fault: FaultPlan | None = None) -> KvCache:
    """The cache of an engine. Raises `BadConfig` for a fault in a baseline, which has none."""
    if config.allocation == Allocation.PAGED:
        return KvCache(ledger, faults=fault, eviction=Eviction(config.eviction), host_blocks=config.swap_blocks)
    if fault is not None:
        raise BadConfig(f"a fault with allocation={config.allocation!r}: faults are drilled with allocation='paged'")
    return ContiguousCache(ledger, Allocation(config.allocation))
