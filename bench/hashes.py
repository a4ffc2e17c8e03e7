"""The state of every hash in a measurement: the same in every run, so that no index lies better in one than in another.

Owns the seeds; hashes nothing.
"""

from __future__ import annotations

from kvledger_engine.kvcache import KvCache

PYTHON_HASH_SEED = "0"
"""What PYTHONHASHSEED is in every process that is measured."""
KEY_SEED = 0
"""What salts our prefix keys, which is random in an engine."""


def pin(cache: KvCache) -> None:
    """Salt the keys of an empty cache with `KEY_SEED`."""
    cache._memory.arrays.seed[:] = KEY_SEED
