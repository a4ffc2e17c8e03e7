"""Row `pool`: taking and releasing 512 blocks with caching on, against plain Python pools in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import Windows, estimate
from bench.hashes import KEY_SEED
from bench.plainpool import PlainPool
from bench.plainrecords import RecordingPool
from bench.result import Bar, Quantity, Result, Sense
from bench.tmpfs import ledger_directory
from kvledger.limits import Limits
from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.chains import NO_BLOCKS, PrefixChains
from kvledger_engine.ids import Ids
from kvledger_engine.memory import CacheMemory
from kvledger_engine.pool import BlockPool

Taken = TypeVar("Taken")

NAME = "pool"
BLOCKS, BLOCK_TOKENS = 512, 16
BAR = Bar(Sense.AT_LEAST, 1.0)
PHASES = ("take", "index", "release")
LEDGER, PLAIN, RECORDING = "ledger", "plain Python", "plain Python keeping our records"
HOW = f"""A pool whose blocks are all cached: taking {BLOCKS} evicts the {BLOCKS} least recently used, which then get
new keys and are cached again by the release. Ours works on a ledger file on tmpfs within a publication, keeps owner,
tenant, stamps, clocks and counts of every block, makes its keys of tokens and compares contents. The peer is a plain
Python pool (deque of free blocks, dict as index, OrderedDict as eviction order, reference counts as ints) that does
none of that; the second peer keeps the same records as ours in lists. All must hand out the same blocks in every round.
Indexing is timed apart: the ratio is of taking and releasing."""


class LedgerPool:
    """Our pool and index, in the three phases of a round."""

    def __init__(self, directory: Path, capacity: int) -> None:
        limits = Limits(engine="pool", capacity_blocks=capacity, max_requests=8)
        self.ledger = Ledger.create(directory, limits)
        memory = CacheMemory(self.ledger, hash_seed=KEY_SEED)
        self._chains, self.pool = PrefixChains(memory), BlockPool(memory)
        self._owner, self._tenant = np.zeros(1, np.uint64), np.zeros(1, np.int16)
        self._salt = np.zeros(1, np.uint64)

    def take(self, count: int) -> Ids:
        """Open a publication and take blocks for one request."""
        self._owner += np.uint64(1)
        self.ledger.begin()
        return self.pool.take(count, self._owner, self._tenant)

    def index(self, blocks: Ids, tokens: I32) -> None:
        """Index the blocks as one new prefix of slot 0, with these tokens [n, block size]; they are stamped first."""
        self.ledger.stamp(blocks)
        numbers = np.arange(len(blocks))
        self._chains.begin(0, NO_BLOCKS, tokens[0], 0)
        rows = np.column_stack((np.zeros_like(numbers), numbers, blocks))
        self._chains.publish(rows, tokens.reshape(1, -1), self._salt)

    def release(self, blocks: Ids) -> None:
        """Give them back, the tail first, and close the publication."""
        self.pool.release(blocks[::-1])
        self.ledger.end()


class Race:
    """The three pools, filled with cached blocks, and rounds on them."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self.ours = LedgerPool(directory, capacity)
        free = self.ours.ledger.free.list[::-1].tolist()
        self.plain, self.recording = PlainPool(free), RecordingPool(free)
        self._random = np.random.default_rng(0)
        for _ in range(capacity // BLOCKS):
            self.round()

    def round(self) -> dict[str, list[float]]:
        """Microseconds of every phase, by pool. Raises `BenchError` if they took different blocks."""
        keys = self._random.integers(1, 1 << 62, BLOCKS, dtype=np.uint64)
        tokens = self._random.integers(0, 32_000, (BLOCKS, BLOCK_TOKENS), dtype=np.int32)
        plain_keys, plain, recording = keys.tolist(), self.plain, self.recording
        ours, blocks = phases(
            lambda: self.ours.take(BLOCKS), lambda taken: self.ours.index(taken, tokens), self.ours.release
        )
        figures = {LEDGER: ours}
        figures[PLAIN], lean = phases(
            lambda: plain.take(BLOCKS),
            lambda taken: plain.register(taken, plain_keys),
            lambda taken: plain.release(taken[::-1]),
        )
        figures[RECORDING], full = phases(
            lambda: recording.take(BLOCKS, owner=recording.seq, tenant=0),
            lambda taken: recording.register(taken, plain_keys),
            lambda taken: recording.release(taken[::-1]),
        )
        if not blocks.tolist() == lean == full:
            raise BenchError("the pools handed out different blocks: they do not follow the same rules")
        return figures

    def require_full_caches(self) -> None:
        """Raises `BenchError` unless all pools end as they began: every block cached and indexed."""
        capacity, plain = self.ours.ledger.limits.capacity_blocks, (self.plain, self.recording.pool)
        counts = [self.ours.pool.cached_blocks, *(len(pool.evictable) for pool in plain)]
        counts += [len(pool.index) for pool in plain]
        if set(counts) != {capacity}:
            raise BenchError(f"{counts} of {capacity} blocks are cached or indexed: work was left out")


def phases(
    take: Callable[[], Taken],
    index: Callable[[Taken], None],
    release: Callable[[Taken], None],
    clock_ns: Callable[[], int] = time.perf_counter_ns,
) -> tuple[list[float], Taken]:
    """Microseconds of the three phases, of wall time or another clock's, and the blocks that were taken."""
    started = clock_ns()
    blocks = take()
    taken = clock_ns()
    index(blocks)
    indexed = clock_ns()
    release(blocks)
    released = clock_ns()
    return [(taken - started) / 1e3, (indexed - taken) / 1e3, (released - indexed) / 1e3], blocks


def measure(effort: Effort) -> list[Result]:
    """Rounds of all pools in turns, each phase timed."""
    with ledger_directory() as directory:
        race = Race(directory, capacity=effort.choose(full=1 << 16, quick=1 << 14))
        rounds = [race.round() for _ in effort.rounds(full=1000, quick=60)]
        race.require_full_caches()
        race.ours.ledger.close()
    figures = {name: np.array([figures[name] for figures in rounds]) for name in rounds[0]}
    return [
        _time(figures[LEDGER]),
        _result(figures, PLAIN, bar=None, first=True),
        _result(figures, RECORDING, bar=BAR, first=False),
    ]


def _time(ours: Windows) -> Result:
    name = f"take and release of {BLOCKS} blocks, caching on (machine-dependent)"
    return Result(row=NAME, name=name, estimate=estimate(_taken_and_released(ours)), unit="µs", how=HOW)


def _taken_and_released(figures: Windows) -> Windows:
    total: Windows = figures[:, 0] + figures[:, 2]
    return total


def _result(figures: dict[str, Windows], peer: str, *, bar: Bar | None, first: bool) -> Result:
    ours, theirs = figures[LEDGER], figures[peer]
    # The first result shows our own times; the second one is of the same rounds.
    named = ((LEDGER, ours), (peer, theirs)) if first else ((peer, theirs),)
    return Result(
        row=NAME,
        name=f"take and release of {BLOCKS} blocks, caching on: {peer} over ours",
        estimate=estimate(_taken_and_released(theirs) / _taken_and_released(ours)),
        unit="×",
        how=HOW,
        bar=bar,
        quantities=(
            *(Quantity(f"take and release, {name}", estimate(_taken_and_released(of)), "µs") for name, of in named),
            *(
                Quantity(f"{phase}, {name}", estimate(of[:, column]), "µs")
                for column, phase in enumerate(PHASES)
                for name, of in named
            ),
            Quantity(f"whole round with indexing, {peer} over ours", estimate(theirs.sum(1) / ours.sum(1)), "×"),
        ),
    )
