"""`python -m tests.alerts.stalling DIRECTORY`: an engine that publishes and whose requests no longer move.

The reference engine has no such defect to switch on: here its loop is left alone after one step, and only publishes.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from kvledger.writer import Ledger
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest

PUBLISH_SECONDS = 0.05


def main(directory: str) -> None:
    """One request runs, one waits for the pool, and nothing happens until the input closes."""
    config = EngineConfig.from_mapping({"engine": "engine", "capacity_blocks": 16, "block_size_tokens": 8})
    ledger = Ledger.create(Path(directory), config.limits())
    model = CellModel(
        capacity_blocks=config.capacity_blocks,
        block_size_tokens=config.block_size_tokens,
        vocab_size=config.vocab_size,
    )
    loop = EngineLoop(config, ledger, model)
    for number, prompt_tokens in enumerate((100, 60)):
        prompt = [1 + number + 2 * position % 100 for position in range(prompt_tokens)]
        loop.submit(NewRequest(request_id=f"stuck-{number}", prompt=prompt, max_tokens=20))
    loop.step()
    print("ready", flush=True)
    closed = threading.Event()
    threading.Thread(target=_close, args=(closed,), daemon=True).start()
    while not closed.wait(PUBLISH_SECONDS):
        ledger.publish_now(idle=False)


def _close(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


if __name__ == "__main__":
    main(sys.argv[1])
