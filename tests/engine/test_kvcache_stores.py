"""A reader may look after any single store: whatever publication it interrupts, a healthy cache shows no finding."""

from __future__ import annotations

import random

import pytest

from kvledger import invariants
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


@pytest.mark.parametrize(("windows", "seed"), [((0, 6), 3), ((6,), 4)], ids=["mixed", "window"])
def test_no_single_store_shows_one_while_blocks_leave_their_windows(windows: tuple[int, ...], seed: int) -> None:
    looks = Looks(every=2)
    kit = Kit(windowed_limits(windows, capacity=24 * len(windows), pins=6), hook=looks)
    looks.reader = kit.reader
    storm(kit, random.Random(seed), 24 * len(windows), operations=110)
    assert looks.looks > 1000
    assert kit.counter("evictions_total") > 0
    assert kit.counter("cow_copies_total") > 0
    assert kit.histogram("block_reference_lifetime", shared="false")[0] > 50


@pytest.mark.parametrize(("capacity", "pins", "seed"), [(24, 3, 1), (10, 1, 2)], ids=["roomy", "cramped"])
def test_no_single_store_shows_a_reader_a_contradiction(capacity: int, pins: int, seed: int) -> None:
    looks = Looks(every=2)
    kit = Kit(small_limits(capacity=capacity, pins=pins, logical_blocks=80), hook=looks)
    looks.reader = kit.reader
    storm(kit, random.Random(seed), capacity, operations=110)
    assert looks.looks > 1000
    assert kit.counter("evictions_total") > 0
    assert kit.counter("cow_copies_total") > 0
