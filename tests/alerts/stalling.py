"""`python -m tests.alerts.stalling DIRECTORY [MODE [NAME]]`: an engine that publishes, whose requests no longer move.

The reference engine has no such defect to switch on: here its loop is left alone after some steps, and only publishes.
Before that, MODE may make of its requests what other engines let happen: `finishing`, one that has ended and keeps its
blocks; `never_fit`, one that waits for more than the pool has; `held`, both, beside a prefix that three requests share.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from kvledger.words import RequestState
from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest

PUBLISH_SECONDS = 0.05
APART: Sequence[tuple[int, int]] = ((1, 100), (2, 60))
ALIKE: Sequence[tuple[int, int]] = ((1, 64), (1, 64), (1, 64), (2, 90))
"""First token and length of each prompt."""


def main(directory: str, mode: str = "stalled", name: str = "engine") -> None:
    """Some requests run, the last one waits for the pool, and nothing happens until the input closes."""
    config = EngineConfig(engine=name, capacity_blocks=16, block_size_tokens=8)
    ledger = Ledger.create(Path(directory), config.limits())
    model = CellModel(
        capacity_blocks=config.capacity_blocks,
        block_size_tokens=config.block_size_tokens,
        vocab_size=config.vocab_size,
    )
    loop = EngineLoop(config, ledger, model)
    for number, (first, tokens) in enumerate(ALIKE if mode == "held" else APART):
        prompt = [first + 2 * position % 100 for position in range(tokens)]
        loop.submit(NewRequest(request_id=f"stuck-{number}", prompt=prompt, max_tokens=20))
        loop.step()
    CHANGES[mode](ledger)
    print("ready", flush=True)
    closed = threading.Event()
    threading.Thread(target=_close, args=(closed,), daemon=True).start()
    while not closed.wait(PUBLISH_SECONDS):
        ledger.publish_now(idle=False)


def _finishing(ledger: Ledger) -> None:
    slots = ledger.slots
    slot, *_ = np.flatnonzero(slots.state == RequestState.RUNNING)
    with _publication(ledger, int(slot)):
        slots.state[slot], slots.finishing_ns[slot] = RequestState.FINISHING, ledger.now_ns


def _never_fit(ledger: Ledger) -> None:
    (slot,) = np.flatnonzero(ledger.slots.state == RequestState.WAITING)
    with _publication(ledger, int(slot)):
        ledger.slots.max_tokens[slot] = 1 << 16


def _held(ledger: Ledger) -> None:
    _finishing(ledger)
    _never_fit(ledger)


@contextmanager
def _publication(ledger: Ledger, slot: int) -> Iterator[None]:
    ledger.begin()
    ledger.slots.changed_seq[slot] = ledger.seq
    yield
    ledger.end()


CHANGES: Mapping[str, Callable[[Ledger], None]] = {
    "stalled": lambda ledger: None,
    "finishing": _finishing,
    "never_fit": _never_fit,
    "held": _held,
}


def _close(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


if __name__ == "__main__":
    main(*sys.argv[1:])
