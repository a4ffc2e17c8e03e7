"""A process that drives the engine core at full speed: shared prompts, forks, preemptions, cancellations, refusals."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from kvledger.words import CancelCause
from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.faults import FaultKind, FaultPlan
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest

CONFIG = EngineConfig(
    engine="storm",
    capacity_blocks=200,
    block_size_tokens=4,
    max_num_seqs=24,
    max_num_batched_tokens=128,
    max_model_len_tokens=160,
    max_waiting=64,
    max_tenants=4,
)


class Storm:
    """Random requests into one engine core, and random ends."""

    def __init__(self, loop: EngineLoop, seed: int) -> None:
        self.loop, self.random = loop, random.Random(seed)
        self.recent: deque[str] = deque(maxlen=64)
        self.number = 0

    def step(self) -> None:
        """Some arrivals, now and then a cancellation, one step."""
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            request = self._request()
            if self.loop.submit(request) is None:
                self.recent.append(request.request_id)
        if self.recent and self.random.random() < 0.2:
            self.loop.cancel([self.random.choice(self.recent)], self.random.choice(list(CancelCause)))
        self.loop.step()

    def _request(self) -> NewRequest:
        self.number += 1
        name = f"storm-{self.number}"
        n = self.random.choice((1, 1, 1, 2, 3))
        tenant = f"tenant-{self.random.randrange(7)}"
        prefix = [self.random.randrange(2)] * 24
        return NewRequest(
            request_id=name,
            prompt=prefix[: self.random.randrange(25)] + [self.random.randrange(256) for _ in range(8)],
            max_tokens=self.random.randint(1, 150),
            tenant=tenant,
            salt=tenant[-1],
            n=n,
            request_class=self.random.choice(("default", "interactive", "batch")),
            temperature=1.0 if n > 1 else 0.0,
        )


def run(directory: str, seed: str, fault: str) -> None:
    """Storm until the input closes. With a fault, say when it has struck."""
    plan = FaultPlan(FaultKind(fault), after=3, seed=int(seed)) if fault != "none" else None
    with _input_closes() as closed:
        limits = replace(CONFIG.limits(), event_records=1 << 10, summary_records=1 << 7)
        ledger = Ledger.create(Path(directory), limits, allow_disk=True)
        ledger.tenants.quota_blocks[ledger.tenant_column("tenant-1")] = 60
        compute = CellModel(
            capacity_blocks=CONFIG.capacity_blocks,
            block_size_tokens=CONFIG.block_size_tokens,
            vocab_size=CONFIG.vocab_size,
        )
        storm = Storm(EngineLoop(CONFIG, ledger, compute, plan), int(seed))
        for _ in range(60):
            storm.step()
        print("ready", flush=True)
        told = False
        while not closed.is_set():
            storm.step()
            if plan is not None and plan.fired and not told:
                told = True
                print(plan.block, flush=True)
        storm.loop.close()


@contextmanager
def _input_closes() -> Iterator[threading.Event]:
    closed = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    yield closed


if __name__ == "__main__":
    run(*sys.argv[1:])
