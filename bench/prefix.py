"""Row `prefix`: keys and look-up of a cached 4,096-token prompt, against a plain Python hash chain in the same run."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import estimate
from bench.hashes import KEY_SEED
from bench.interleave import interleave
from bench.plainprefix import PlainPrefixIndex
from bench.result import Quantity, Result
from bench.tmpfs import ledger_directory
from kvledger.limits import Limits
from kvledger.words import ReleaseCause
from kvledger.writer import Ledger
from kvledger_engine.kvcache import KvCache

NAME = "prefix"
PROMPT_TOKENS, BLOCK_TOKENS, PROMPTS, SALT = 4096, 16, 64, 7
HIT_TOKENS = PROMPT_TOKENS - BLOCK_TOKENS
HOW = f"""The cache facade's `match` on a {PROMPT_TOKENS:,}-token prompt whose blocks are all cached, among {PROMPTS}
such prompts taken in turns: keys of its blocks, look-up, comparison of contents and of the chain. The last block is
left to compute, so {HIT_TOKENS // BLOCK_TOKENS} blocks are found. The peer hashes `(key before, tuple of tokens)`
block by block, looks up a dict and compares no content; it is given lists of ints, ours an int32 array."""


class Lookups:
    """The same prompts in both indexes, looked up one after the other. Every answer is checked."""

    def __init__(self, directory: Path) -> None:
        blocks = PROMPT_TOKENS // BLOCK_TOKENS
        limits = Limits(engine="prefix", capacity_blocks=PROMPTS * blocks, max_requests=1)
        self.ledger = Ledger.create(directory, limits)
        self._cache, self._plain = KvCache(self.ledger, hash_seed=KEY_SEED), PlainPrefixIndex(BLOCK_TOKENS)
        self._prompts = np.random.default_rng(0).integers(0, 32_000, (PROMPTS, PROMPT_TOKENS), dtype=np.int32)
        self._lists = [prompt.tolist() for prompt in self._prompts]
        for number in range(PROMPTS):
            self._fill(number)
        self._turn = {"ledger": 0, "plain": 0}

    def _fill(self, number: int) -> None:
        slot, prompt = np.zeros(1, np.intp), self._prompts[number : number + 1]
        self.ledger.begin()
        self.ledger.slots.serial[0] = number + 1
        if self._cache.admit(0, prompt[0], SALT, PROMPT_TOKENS) != 0:
            raise BenchError("a prompt was not new to the cache, or did not fit")
        blocks = self._cache.blocks_of(0).tolist()
        self._cache.commit(slot, np.array([PROMPT_TOKENS]), prompt, np.array([SALT], np.uint64))
        self._cache.release(0, cause=ReleaseCause.FINISH)
        self.ledger.end()
        self._plain.register(self._lists[number], blocks, SALT)

    def _next(self, name: str) -> int:
        turn = self._turn[name]
        self._turn[name] = turn + 1
        # A look-up of the request looked up last would be answered from memory: every one is another request's.
        self.ledger.slots.serial[0] = PROMPTS + 1 + turn
        return turn % PROMPTS

    def ours(self) -> float:
        """Microseconds of one look-up through the facade."""
        prompt = self._prompts[self._next("ledger")]
        started_ns = time.perf_counter_ns()
        hit_tokens = self._cache.match(0, prompt, SALT)
        elapsed = (time.perf_counter_ns() - started_ns) / 1e3
        return self._checked(elapsed, hit_tokens)

    def plain(self) -> float:
        """Microseconds of one look-up of the peer."""
        prompt = self._lists[self._next("plain")]
        started_ns = time.perf_counter_ns()
        found = self._plain.match(prompt, SALT)
        elapsed = (time.perf_counter_ns() - started_ns) / 1e3
        return self._checked(elapsed, len(found) * BLOCK_TOKENS)

    @staticmethod
    def _checked(elapsed: float, hit_tokens: int) -> float:
        if hit_tokens != HIT_TOKENS:
            raise BenchError(f"{hit_tokens} tokens were found cached, {HIT_TOKENS} are")
        return elapsed


def measure(effort: Effort) -> list[Result]:
    """Single look-ups, in turns."""
    with ledger_directory() as directory:
        lookups = Lookups(directory)
        figures = interleave(
            effort.rounds(full=2000, quick=100), {"ledger": lookups.ours, "plain Python": lookups.plain}
        )
        lookups.ledger.close()
    return [
        Result(
            row=NAME,
            name=f"keys and look-up of a cached {PROMPT_TOKENS:,}-token prompt: plain Python hash chain over ours",
            estimate=estimate(figures["plain Python"] / figures["ledger"]),
            unit="×",
            how=HOW,
            quantities=tuple(Quantity(f"look-up, {name}", estimate(values), "µs") for name, values in figures.items()),
        )
    ]
