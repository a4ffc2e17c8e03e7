"""`python -m tests.verdict.odd DIRECTORY KIND`: engines in states that `kvledger engine` has no flag for.

The reference engine's own loop on the real clock, with one thing changed, and requests of its own in a closed loop.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvledger.words import PinKind, ReleaseCause
from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import Finished, NewRequest
from kvledger_engine.steptime import StepTime, TimedCompute

LEASE_NS = 600 * 10**9
PUBLISH_SECONDS = 0.05


class Odd:
    """One engine core and its load."""

    def __init__(self, directory: Path, *, clients: int, prompt: int, tokens: int, **config: Any) -> None:
        self.config = EngineConfig(**{"block_size_tokens": 16} | config)
        self.ledger = Ledger.create(directory, self.config.limits())
        cells = CellModel(
            capacity_blocks=self.config.capacity_blocks,
            block_size_tokens=self.config.block_size_tokens,
            vocab_size=self.config.vocab_size,
        )
        compute = TimedCompute(cells, StepTime(base=0.02), self.ledger.clock)
        self.loop = EngineLoop(self.config, self.ledger, compute)
        self._chance, self._number, self._prompt, self._tokens = random.Random(1), 0, prompt, tokens
        for _ in range(clients):
            self.send()
        print("ready", flush=True)

    def send(self) -> None:
        """One request with a prompt of its own."""
        self._number += 1
        prompt = [self._chance.randrange(1, 250) for _ in range(self._prompt)]
        self.loop.submit(
            NewRequest(request_id=f"r-{self._number}", prompt=prompt, max_tokens=self._tokens, tenant="acme")
        )

    def serve(self, closed: threading.Event) -> None:
        """Step until the input closes; who has ended comes again."""
        while not closed.is_set():
            for answer in self.loop.step():
                if isinstance(answer, Finished):
                    self.send()

    def publish_only(self, closed: threading.Event) -> None:
        """One step, and then only publications."""
        self.loop.step()
        while not closed.wait(PUBLISH_SECONDS):
            self.ledger.publish_now(idle=False)


def retaining(
    kind: PinKind, most_blocks: int, *, clients: int = 12, capacity_blocks: int = 128
) -> Callable[[Path, threading.Event], None]:
    """What has ended is kept by pins with a lease, up to so many blocks."""

    def run(directory: Path, closed: threading.Event) -> None:
        odd = Odd(directory, clients=clients, prompt=100, tokens=40, capacity_blocks=capacity_blocks)
        cache: Any = odd.loop.cache
        release, kept = cache.release, [0]

        def keep(slot: int, *, cause: ReleaseCause, saved_blocks: int = 0) -> int:
            blocks = cache.blocks_of(slot)
            if cause is ReleaseCause.FINISH and kept[0] + len(blocks) <= most_blocks:
                cache.pins.add(blocks, kind, int(odd.ledger.slots.serial[slot]), lease_ns=LEASE_NS)
                kept[0] += len(blocks)
            given: int = release(slot, cause=cause, saved_blocks=saved_blocks)
            return given

        cache.release = keep
        odd.serve(closed)

    return run


def slow(clients: int, tokens: int, seconds: float = 0.02) -> Callable[[Path, threading.Event], None]:
    """Every call of the allocator takes so long."""

    def run(directory: Path, closed: threading.Event) -> None:
        odd = Odd(directory, clients=clients, prompt=100, tokens=tokens, capacity_blocks=1024)
        pool: Any = odd.loop.cache.pool
        take = pool.take

        def dawdle(*arguments: Any) -> Any:
            time.sleep(seconds)
            return take(*arguments)

        pool.take = dawdle
        odd.serve(closed)

    return run


def stuck(clients: int = 4, **config: Any) -> Callable[[Path, threading.Event], None]:
    """Requests wait, steps go by, and nobody gets a token or is admitted."""

    def run(directory: Path, closed: threading.Event) -> None:
        Odd(directory, clients=clients, prompt=100, tokens=40, **config).publish_only(closed)

    return run


KINDS: dict[str, Callable[[Path, threading.Event], None]] = {
    "retaining_transfers": retaining(PinKind.TRANSFER, 80),
    "retaining_connector": retaining(PinKind.CONNECTOR, 100),
    "retaining_deferred": retaining(PinKind.DEFERRED_FREE, 150, clients=20, capacity_blocks=300),
    "slow_allocator": slow(clients=8, tokens=24),
    "slow_allocator_many": slow(clients=24, tokens=48),
    "slow_allocator_thirty": slow(clients=14, tokens=32, seconds=0.03),
    "stuck_at_the_pool": stuck(capacity_blocks=16),
    "stuck_at_the_slots": stuck(capacity_blocks=512, max_num_seqs=2),
    "stuck_at_eight_slots": stuck(clients=20, capacity_blocks=640, max_num_seqs=8),
}


def main(directory: str, kind: str) -> None:
    """Run one kind until the input closes."""
    closed = threading.Event()
    threading.Thread(target=_close, args=(closed,), daemon=True).start()
    KINDS[kind](Path(directory), closed)


def _close(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
