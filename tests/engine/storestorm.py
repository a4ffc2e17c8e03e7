"""A process that looks at its own ledger before every second store of a storm: see `test_kvcache_stores`.

Run with NUMBA_DISABLE_JIT=1, so that the hook sees the stores of kernels, too; prints counts, and fails at a finding.
"""

from __future__ import annotations

import json
import random
import sys

import numba
import numpy as np

from kvledger import invariants
from kvledger.limits import Limits
from kvledger.reader import Reader
from tests.engine.cachekit import MAX_TOKENS, Kit, small_limits, windowed_limits


class Looks:
    """Audits the ledger before every `every`-th store into it."""

    def __init__(self, every: int) -> None:
        self.every, self.stores, self.looks = every, 0, 0
        self.reader: Reader | None = None

    def __call__(self) -> None:
        self.stores += 1
        if self.reader is not None and self.stores % self.every == 0:
            self.looks += 1
            audit = self.reader.audit(0)
            found = invariants.suspects(audit)
            assert not found, f"store {self.stores}: {found}"
            assert not audit.damage


def storm(kit: Kit, rng: random.Random, capacity: int, *, operations: int) -> None:
    """Requests that come, compute, fork and go, in a pool that has to evict."""
    live: dict[int, int] = {}
    for _ in range(operations):
        vacant = next((slot for slot in range(6) if slot not in live), None)
        draw = rng.random()
        if draw < 0.35 and vacant is not None:
            tokens = [rng.randint(0, 1)] * 4 + [rng.randint(0, 9) for _ in range(rng.randint(1, 9))]
            if kit.start(vacant, tokens) is not None:
                live[vacant] = len(tokens)
        elif draw < 0.45 and vacant is not None and live:
            source = rng.choice(sorted(live))
            kit.fork(source, vacant)
            live[vacant] = live[source]
        elif draw < 0.75 and live:
            after = {slot: length + 1 for slot, length in live.items() if length < MAX_TOKENS}
            if sum(-(-length // 4) for length in after.values()) * kit.kv.windows.count < capacity - 4:
                kit.step(after)
                live |= after
        elif live:
            slot = rng.choice(sorted(live))
            kit.end(slot)
            del live[slot]


CASES: dict[str, tuple[Limits, int, int]] = {
    "roomy": (small_limits(capacity=24, pins=3, logical_blocks=80), 1, 24),
    "cramped": (small_limits(capacity=10, pins=1, logical_blocks=80), 2, 10),
    "mixed": (windowed_limits((0, 6), capacity=48, pins=6), 3, 48),
    "window": (windowed_limits((6,), capacity=24, pins=6), 4, 24),
}


def main(case: str, operations: int, every: int) -> None:
    """Storm, and print what was looked at and what happened."""
    assert numba.config.DISABLE_JIT, "compiled stores would not be seen"
    np.seterr(over="ignore")  # keys are sums modulo 2^64
    limits, seed, capacity = CASES[case]
    looks = Looks(every)
    kit = Kit(limits, hook=looks)
    looks.reader = kit.reader
    storm(kit, random.Random(seed), capacity, operations=operations)
    counts = {
        "looks": looks.looks,
        "evictions": kit.counter("evictions_total"),
        "copies": kit.counter("cow_copies_total"),
        "lifetimes": kit.histogram("block_reference_lifetime", shared="false")[0],
    }
    print(json.dumps(counts))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
