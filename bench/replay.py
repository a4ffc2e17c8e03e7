"""Our cache fed with the prompts of a trace, one after the other: look-up, sharing, allocation, release.

Owns its ledger; times nothing and decides nothing but who ends, which is the oldest.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np

from bench.errors import BenchError
from bench.hashes import KEY_SEED
from kvledger.limits import Limits
from kvledger.views import I32
from kvledger.words import ReleaseCause, RequestState
from kvledger.writer import Ledger
from kvledger_engine.kvcache import KvCache

BLOCK_TOKENS, SALT = 16, 1


class Replay:
    """So many blocks, and `running` requests at most, of which the oldest ends when another comes."""

    def __init__(self, directory: Path, *, capacity_blocks: int, running: int, longest_tokens: int) -> None:
        table_blocks = -(-longest_tokens // BLOCK_TOKENS)
        limits = Limits(
            engine="replay",
            capacity_blocks=capacity_blocks,
            max_requests=running,
            max_logical_blocks=running * table_blocks,
            max_model_len_tokens=longest_tokens,
        )
        self.ledger = Ledger.create(directory, limits)
        self.cache = KvCache(self.ledger, hash_seed=KEY_SEED)
        # What an engine keeps of its requests besides the cache.
        self._tokens = np.zeros((running, longest_tokens), np.int32)
        self._salts = np.full(running, SALT, np.uint64)
        self._free, self._running = list(range(running)), deque[int]()
        self._served = 0

    def serve(self, prompt: I32) -> tuple[int, int]:
        """One more request: its hit tokens, and the blocks it has. Two publications, as a step of the engine makes.

        Raises `BenchError` if it does not fit.
        """
        ledger, cache = self.ledger, self.cache
        ledger.begin()
        if not self._free:
            self._end_oldest()
        slot = self._free.pop()
        self._served += 1
        ledger.slots.serial[slot], ledger.slots.state[slot] = self._served, RequestState.RUNNING
        self._tokens[slot, : len(prompt)] = prompt
        hit = cache.match(slot, prompt, SALT)
        if cache.admit(slot, prompt, SALT, len(prompt) - hit) != hit:
            raise BenchError(f"a prompt of {len(prompt)} tokens did not fit: give the pool more blocks")
        ledger.end()
        ledger.begin()
        cache.commit(np.array([slot]), np.array([len(prompt)]), self._tokens, self._salts)
        ledger.end()
        self._running.append(slot)
        return hit, cache.held_blocks(slot)

    def _end_oldest(self) -> None:
        slot = self._running.popleft()
        self.cache.release(slot, cause=ReleaseCause.FINISH)
        self.ledger.slots.serial[slot], self.ledger.slots.state[slot] = 0, RequestState.FINISHED
        self._free.append(slot)

    def free(self) -> int:
        """End all that run; returns how many blocks can be taken then."""
        self.ledger.begin()
        while self._running:
            self._end_oldest()
        self.ledger.end()
        return self.cache.pool.available_blocks

    def close(self) -> None:
        """Leave the ledger."""
        self.ledger.close()
