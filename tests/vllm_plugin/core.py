"""An engine core in a process of its own, without an engine: `python -m tests.vllm_plugin.core DIRECTORY REQUESTS`.

Attaches, lets its mirror stand still, publishes so many arrivals, and forks a child that goes on without it. Says the
process ids of mirror and child, and waits for its end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from kvledger_vllm.attach import attach
from kvledger_vllm.settings import Settings
from tests.vllm_plugin.fakes import Scheduler
from tests.vllm_plugin.tokenrig import Asked


def main(directory: Path, requests: int) -> None:
    """Everything above."""
    scheduler = Scheduler()
    instrument = attach(scheduler, Settings(directory=directory))
    assert instrument.mirror is not None, instrument.switch.why
    assert instrument.await_applied()
    os.kill(instrument.mirror.pid, signal.SIGSTOP)
    for number in range(requests):
        scheduler.add_request(Asked(f"r{number}", 5))
    assert instrument.switch.on, instrument.switch.why
    child = os.fork()
    if child:
        print(instrument.mirror.pid, child, flush=True)
    signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
