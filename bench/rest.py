"""Rest between windows: everybody who was started has stopped computing. Some spin for a second after their last work.

vLLM's workers do: whoever is measured meanwhile has one core less, and which window that is depends on the order.
"""

from __future__ import annotations

import time

import psutil

from bench.errors import BenchError

LOOK_SECONDS, MOST_SECONDS = 0.2, 30.0
MOST_BUSY = 0.05
"""Of one core, all together: servers that wait have their timers."""


def await_rest(*, within_seconds: float = MOST_SECONDS) -> None:
    """Return once all processes below this one use next to no processor time. Raises `BenchError` if they go on."""
    deadline, before = time.monotonic() + within_seconds, _spent_seconds()
    while True:
        time.sleep(LOOK_SECONDS)
        after = _spent_seconds()
        # Who has come since was not there to rest.
        busy = {pid: spent - before.get(pid, 0.0) for pid, spent in after.items()}
        if sum(busy.values()) <= MOST_BUSY * LOOK_SECONDS:
            return
        if time.monotonic() > deadline:
            most = max(busy, key=lambda pid: busy[pid])
            raise BenchError(f"process {most} computes though it was given nothing to do for {within_seconds:g} s")
        before = after


def _spent_seconds() -> dict[int, float]:
    """Processor time by process id."""
    spent = {}
    for process in psutil.Process().children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        spent[process.pid] = times.user + times.system
    return spent
