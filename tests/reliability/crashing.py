"""An engine on the real clock under its own storm, that may kill itself at its n-th store. Run as a process of its own.

`python -m tests.reliability.crashing DIRECTORY SEED CRASH_AT_STORE`; 0 never crashes. Prints `ready` once live.
With NUMBA_DISABLE_JIT=1, so that the stores of kernels are counted, too.
Every store into the ledger happens inside a publication, so a crash at a store is a crash inside a publication.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import numba
import numpy as np

from kvledger.words import CancelCause
from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import Finished, Refused
from tests.reliability.workload import StormShape, replace_id, storm

CONFIG = EngineConfig(
    engine="crashing",
    capacity_blocks=160,
    block_size_tokens=8,
    max_num_seqs=16,
    max_num_batched_tokens=128,
    max_model_len_tokens=640,
    max_waiting=64,
)
LIVE_REQUESTS = 24
STEP_PAUSE_SECONDS = 0.002


class StoreCounter:
    """The hook: counts stores, and is the last thing the process does at store number `crash_at`."""

    def __init__(self, crash_at: int) -> None:
        self._left = crash_at or -1

    def __call__(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def arm(self, crash_at: int) -> None:
        """Start counting anew."""
        self._left = crash_at or -1


def main(directory: Path, seed: int, crash_at: int) -> None:
    """Storm until killed."""
    assert numba.config.DISABLE_JIT, "compiled stores would not be counted"
    np.seterr(over="ignore")  # keys are sums modulo 2^64
    counter = StoreCounter(0)
    ledger = Ledger.create(directory, CONFIG.limits(), hook=counter)
    cells = CellModel(
        capacity_blocks=CONFIG.capacity_blocks, block_size_tokens=CONFIG.block_size_tokens, vocab_size=CONFIG.vocab_size
    )
    loop = EngineLoop(CONFIG, ledger, cells)
    print("ready", flush=True)
    counter.arm(crash_at)
    _storm(loop, seed)


def _storm(loop: EngineLoop, seed: int) -> None:
    rng = random.Random(seed)
    shape = StormShape(output_tokens=(1, 60))
    live: set[str] = set()
    for number, arrival in enumerate(storm(seed, shape, until_seconds=1e9)):
        request = replace_id(arrival.request, f"{seed}-{number}")
        if loop.submit(request) is None:
            live.add(request.request_id)
        while len(live) >= LIVE_REQUESTS or (loop.has_work and rng.random() < 0.7):
            for output in loop.step():
                if isinstance(output, Finished | Refused):
                    live.discard(output.request_id)
            time.sleep(STEP_PAUSE_SECONDS)
            if live and rng.random() < 0.1:
                victim = rng.choice(sorted(live))
                live.discard(victim)
                loop.cancel([victim], CancelCause.API)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
