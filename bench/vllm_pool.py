"""Rounds of our pool and vLLM's in turns: `python -m bench.vllm_pool` in vLLM's environment, for row `vllm-pool`."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np

from bench.answers import Answer, answering
from bench.effort import Effort
from bench.errors import BenchError
from bench.pool import BLOCK_TOKENS, BLOCKS, PHASES, LedgerPool, phases
from bench.tmpfs import ledger_directory
from bench.vllm_manager import Pool, settle, versions

FULL_CAPACITY, QUICK_CAPACITY = 1 << 16, 1 << 14
_HASH_BYTES = 32


class Race:
    """Both pools, filled with cached blocks, and rounds on them."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self.ours, self.theirs, self._capacity = LedgerPool(directory, capacity), Pool(capacity), capacity
        self._numbers, self._bytes = np.random.default_rng(0), random.Random(0)
        for turn in range(capacity // BLOCKS):
            self.round(turn)

    def round(self, turn: int) -> dict[str, list[float]]:
        """Microseconds of each phase, by side; every other turn the other side is first.

        Raises `BenchError` if they took different blocks.
        """
        tokens = self._numbers.integers(0, 32_000, (BLOCKS, BLOCK_TOKENS), dtype=np.int32)
        hashes = [self._bytes.randbytes(_HASH_BYTES) for _ in range(BLOCKS)]
        if turn % 2:
            vllm, theirs = self._theirs(hashes)
            ledger, ours = self._ours(tokens)
        else:
            ledger, ours = self._ours(tokens)
            vllm, theirs = self._theirs(hashes)
        # vLLM's block 0 is never handed out.
        if ours != [block - 1 for block in theirs]:
            raise BenchError("the pools handed out different blocks: they do not follow the same rules")
        return {"ours": ledger, "vllm": vllm}

    def _ours(self, tokens: np.ndarray) -> tuple[list[float], list[int]]:
        pool = self.ours
        figures, blocks = phases(
            lambda: pool.take(BLOCKS), lambda taken: pool.index(taken, tokens), pool.release, time.thread_time_ns
        )
        return figures, blocks.tolist()

    def _theirs(self, hashes: list[bytes]) -> tuple[list[float], list[int]]:
        pool = self.theirs
        figures, blocks = phases(
            lambda: pool.take(BLOCKS), lambda taken: pool.index(taken, hashes), pool.release, time.thread_time_ns
        )
        return figures, [block.block_id for block in blocks]

    def require_full_caches(self) -> None:
        """Raises `BenchError` unless every block is back and cached on both sides."""
        counts = {self.ours.pool.cached_blocks, *self.theirs.cached}
        if counts != {self._capacity}:
            raise BenchError(f"{sorted(counts)} of {self._capacity} blocks are back or cached: work was left out")


def measure(effort: Effort) -> Answer:
    """Microseconds of every phase of both sides, by `side phase`."""
    with ledger_directory() as directory:
        race = Race(directory, effort.choose(full=FULL_CAPACITY, quick=QUICK_CAPACITY))
        settle()
        rounds = [race.round(turn) for turn in effort.rounds(full=1000, quick=100)]
        race.require_full_caches()
        race.ours.ledger.close()
    figures = {
        f"{side} {phase}": np.array([figures[side][column] for figures in rounds])
        for side in ("ours", "vllm")
        for column, phase in enumerate(PHASES)
    }
    mean = {side: float((figures[f"{side} take"] + figures[f"{side} release"]).mean()) for side in ("ours", "vllm")}
    means = f"take and release on average: ours {mean['ours']:.0f} µs, vLLM {mean['vllm']:.0f} µs"
    return Answer(figures, (versions(), f"{means} ({mean['vllm'] / mean['ours']:.2f} ×)"))


if __name__ == "__main__":
    answering(measure)
