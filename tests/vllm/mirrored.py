"""vLLM's scheduler without a model, mirrored by an instrument, and random work for it; compared call by call."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from kvledger.invariants import counts, suspects
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger_vllm.attach import Instrument, attach
from kvledger_vllm.settings import Settings
from tests.vllm.bare import BareScheduler
from tests.vllm.truth import differences, ledger_counts, truth_of

_engines = count()
Words = list[int]


class Mirrored:
    """A bare scheduler, its instrument, and a reader of its ledger."""

    def __init__(self, bare: BareScheduler, instrument: Instrument) -> None:
        assert instrument.ledger is not None, instrument.switch.why
        self.bare, self.scheduler, self.instrument = bare, bare.scheduler, instrument
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.tables = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        self._reader = Reader.over(MemorySource(instrument.ledger.image))

    @property
    def reader(self) -> Reader:
        """Of the ledger, once it says everything that was published."""
        assert self.instrument.switch.on, self.instrument.switch.why
        assert self.instrument.await_applied(), "the mirror does not apply what it is sent"
        return self._reader

    def check(self, what: str) -> None:
        """The ledger says what vLLM says, and nothing of it is suspect."""
        assert self.instrument.switch.on, (what, self.instrument.switch.why)
        assert differences(truth_of(self.scheduler), ledger_counts(self.reader)) == {}, what
        audit = self.reader.audit()
        assert (suspects(audit), counts(self.reader.sample(), audit), [*audit.damage]) == ([], {}, []), what

    def named(self) -> set[tuple[str, int, int]]:
        """What the ledger finds wrong: (kind, vLLM's block, by how many)."""
        return {(found.kind.word, found.block + 1, found.excess) for found in suspects(self.reader.audit())}

    def causes(self) -> set[int]:
        """What requests wait for now."""
        return {cause for cause in self.reader.sample().wait_causes().tolist() if cause >= 0}

    def corrections(self) -> int:
        """Blocks that changed by no way that is watched."""
        return self.reader.sample().control["mirror_corrections"]


@contextmanager
def mirrored(
    model: Path, directory: Path, *, blocks: int, seed: int, max_requests: int = 0, **options: Any
) -> Iterator[Mirrored]:
    """A bare scheduler with an instrument of its own. `options` are `BareScheduler`'s."""
    bare = BareScheduler(model, blocks=blocks, seed=seed, **options)
    instrument = attach(
        bare.scheduler, Settings(directory=directory, engine=f"bare-{next(_engines)}", max_requests=max_requests)
    )
    try:
        yield Mirrored(bare, instrument)
    finally:
        if instrument.stop is not None:
            instrument.stop()


class Work:
    """Random calls of a scheduler, checked after each."""

    def __init__(self, mirror: Mirrored, seed: int) -> None:
        self.mirror, self.bare, self.random = mirror, mirror.bare, random.Random(seed)
        self.prefixes = [self.words(200) for _ in range(3)]
        self.ids = count()

    def words(self, number: int) -> Words:
        """Random tokens."""
        return [self.random.randrange(3, 512) for _ in range(number)]

    def call(self) -> str:
        """Make one call; its name."""
        drawn, requests = self.random.random(), self.bare.scheduler.requests
        if drawn < 0.3 and len(requests) < 40:
            return self.arrive()
        if drawn < 0.36 and requests:
            self.bare.abort(self.random.choice(list(requests)))
            return "abort"
        if drawn < 0.37:
            self.bare.scheduler.reset_prefix_cache()
            return "reset"
        if drawn < 0.375:
            self.bare.drain()
            self.bare.scheduler.reset_prefix_cache(reset_running_requests=True)
            return "reset with the running"
        self.bare.schedule()
        self.mirror.check("schedule")
        if self.bare.full():
            self.bare.update()
        return "update"

    def arrive(self) -> str:
        """A request with a shared beginning, some with a salt."""
        prompt = self.random.choice(self.prefixes)[: self.random.randrange(1, 200)]
        salt: dict[str, Any] = {"cache_salt": "salt"} if self.random.random() < 0.2 else {}
        self.bare.add(
            f"cmpl-{next(self.ids):032d}-0-abcdef12",
            prompt + self.words(self.random.randrange(1, 60)),
            max_tokens=self.random.randrange(1, 120),
            **salt,
        )
        return "arrival"


def six_requests(mirror: Mirrored, seed: int) -> None:
    """Six that share a beginning and run; everything that was in flight is applied."""
    drawn = random.Random(seed)
    shared = [drawn.randrange(3, 512) for _ in range(120)]
    for number in range(6):
        mirror.bare.add(f"r{number}", shared + [drawn.randrange(3, 512) for _ in range(30)], max_tokens=200)
    for _ in range(12):
        mirror.bare.step()
    mirror.bare.drain()
