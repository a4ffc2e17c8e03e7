"""`python -m tests.dashboards.cramped DIRECTORY`: an engine whose ledger has no room, so that records are lost.

The reference engine sizes its ledger so that this does not happen. Here its rings hold a few records and its pin table
one pin, and requests that fork, which pins blocks, come and go until the input closes.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest

NAME = "cramped"
PAUSE_SECONDS = 0.005
RING_RECORDS = 16
PROMPT = [1 + position for position in range(20)]
"""No whole number of blocks: the last one is shared by the forks and copied when they write."""


def main(directory: str) -> None:
    """One request after the other."""
    config = EngineConfig(engine=NAME, model=NAME, capacity_blocks=64, block_size_tokens=8)
    limits = replace(config.limits(), event_records=RING_RECORDS, summary_records=RING_RECORDS, max_pins=1)
    ledger = Ledger.create(Path(directory), limits)
    model = CellModel(
        capacity_blocks=config.capacity_blocks,
        block_size_tokens=config.block_size_tokens,
        vocab_size=config.vocab_size,
    )
    loop = EngineLoop(config, ledger, model)
    closed = threading.Event()
    threading.Thread(target=_close, args=(closed,), daemon=True).start()
    number = 0
    while not closed.wait(PAUSE_SECONDS):
        if not loop.has_work:
            number += 1
            loop.submit(NewRequest(request_id=f"cramped-{number}", prompt=PROMPT, max_tokens=4, n=4))
        loop.step()


def _close(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


if __name__ == "__main__":
    main(sys.argv[1])
