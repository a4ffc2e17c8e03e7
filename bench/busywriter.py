"""A writer for the reader to look at: long sequences over shuffled blocks, decoding as fast as asked, some replaced.

A process of its own (`python -m bench.busywriter DIRECTORY BLOCKS RATE [NAME]`): a reader and the writer of a file
never share one. It prints a JSON line when the ledger is full and ends when its standard input closes. Pool, tables,
prefix index and request slots are the engine's; a step is two publications, as the engine's is, without a batch.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

from kvledger.views import I32
from kvledger.words import ReleaseCause, RequestState
from kvledger.writer import Ledger
from kvledger_engine.config import EngineConfig
from kvledger_engine.kvcache import KvCache
from kvledger_engine.messages import NewRequest
from kvledger_engine.request import RequestTable

SEQUENCES, BLOCK_TOKENS, VOCABULARY = 256, 16, 32_000
TENANTS = 64
REPLACE_EVERY_STEPS = 40
SPARE_TOKENS = SEQUENCES * REPLACE_EVERY_STEPS
"""How far a sequence decodes before it is its turn to be replaced."""


class BusyWriter:
    """`SEQUENCES` running sequences that hold `blocks` or more at every publication after the first ones."""

    def __init__(self, directory: Path, blocks: int, name: str) -> None:
        self.prompt_tokens = -(-blocks // SEQUENCES) * BLOCK_TOKENS
        longest = self.prompt_tokens + SPARE_TOKENS + BLOCK_TOKENS
        config = EngineConfig(
            engine=name,
            capacity_blocks=SEQUENCES * longest // BLOCK_TOKENS,
            block_size_tokens=BLOCK_TOKENS,
            vocab_size=VOCABULARY,
            max_num_seqs=SEQUENCES,
            max_num_batched_tokens=SEQUENCES,
            max_model_len_tokens=longest,
            max_waiting=1,
        )
        self.ledger = Ledger.create(directory, config.limits())
        self._cache, self._requests = KvCache(self.ledger), RequestTable(config, self.ledger)
        self._random, self._replaced = np.random.default_rng(0), 0
        self._steps = self.ledger.stats.counter("engine_steps_total")
        self._tenants = [self.ledger.tenant_column(f"tenant-{number}") for number in range(TENANTS)]
        self._base = self._random.integers(0, VOCABULARY, self.prompt_tokens).tolist()
        self._shuffle()
        self._slots: I32 = np.concatenate([self._admit(number) for number in range(SEQUENCES)])

    def _shuffle(self) -> None:
        """Free blocks in random order: tables then wander all over the pool, as after hours of service."""
        blocks = self.ledger.free.list[:]
        self.ledger.begin()
        self.ledger.stamp(blocks)
        self.ledger.free.list[:] = self._random.permutation(blocks)
        self.ledger.end(idle=False)

    def _admit(self, number: int) -> I32:
        self.ledger.begin()
        slot = self._seat(number)
        self.ledger.end(idle=False)
        return slot

    def _seat(self, number: int) -> I32:
        """A new request whose whole prompt is computed, in the open publication."""
        prompt = [number % VOCABULARY, number // VOCABULARY, *self._base[2:]]
        request = NewRequest(request_id=f"request-{number}", prompt=prompt, max_tokens=SPARE_TOKENS)
        slot = self._requests.open(
            request, tenant_column=self._tenants[number % TENANTS], arrived_ns=self.ledger.now_ns
        )
        tokens = self._requests.sequence(int(slot[0]))
        self._requests.move(slot, RequestState.RUNNING)
        hit_tokens = self._cache.admit(int(slot[0]), tokens, 0, len(tokens))
        assert hit_tokens == 0, f"{hit_tokens} tokens of a new prompt were cached"
        self._cache.commit(slot, np.array([len(tokens)]), self._requests.tokens, self._requests.salts)
        return slot

    def step(self, number: int) -> None:
        """A token for every sequence; in every 40th step the oldest sequence ends and another takes its place."""
        slots, ends = self._slots, self.ledger.slots.computed_tokens[self._slots] + 1
        self.ledger.begin()
        self._cache.grow(slots, ends)
        self.ledger.end(idle=False)
        self.ledger.begin()
        self._cache.commit(slots, ends, self._requests.tokens, self._requests.salts)
        self.ledger.slots.output_tokens[slots] += 1
        if number % REPLACE_EVERY_STEPS == 0:
            self._replace()
        self.ledger.stats.values[self._steps] += 1
        self.ledger.end(idle=False)

    def _replace(self) -> None:
        row = self._replaced % SEQUENCES
        slot = self._slots[row : row + 1]
        self._requests.move(slot, RequestState.FINISHING)
        self._cache.release(int(slot[0]), cause=ReleaseCause.FINISH)
        self._requests.close(slot)
        self._slots[row : row + 1] = self._seat(SEQUENCES + self._replaced)
        self._replaced += 1


def run(directory: Path, blocks: int, steps_per_second: float, name: str = "busy") -> None:
    """Fill a ledger, say so, and step at the rate given, or as fast as it goes, until the input closes."""
    stop = threading.Event()
    threading.Thread(target=_set_at_end_of_input, args=(stop,), daemon=True).start()
    writer = BusyWriter(directory, blocks, name)
    print(json.dumps({"ledger": str(writer.ledger.path)}), flush=True)
    number, due = 0, time.monotonic()
    while not stop.is_set():
        number += 1
        writer.step(number)
        due = max(due + 1 / steps_per_second, time.monotonic() - 1.0)
        if (left := due - time.monotonic()) > 0:
            stop.wait(left)
    writer.ledger.close()


def _set_at_end_of_input(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
