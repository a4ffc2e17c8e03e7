"""How long work on a device takes. On a card a call returns before the work is done: events in its stream tell."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Times one piece of work after the other: `start`, `stop`, then `seconds`."""

    def __init__(self, device: torch.device) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
        self._times_ns = [0, 0]

    def start(self) -> None:
        """The work begins now, or when the card comes to it."""
        self._mark(0)

    def stop(self) -> None:
        """The work has been done, or is queued."""
        self._mark(1)

    def _mark(self, which: int) -> None:
        if self._events:
            self._events[which].record()
        else:
            self._times_ns[which] = time.perf_counter_ns()

    def seconds(self) -> float:
        """What the last piece of work took. On a card this waits for it."""
        if not self._events:
            return (self._times_ns[1] - self._times_ns[0]) / 1e9
        began, ended = self._events
        ended.synchronize()
        milliseconds: float = began.elapsed_time(ended)
        return milliseconds / 1e3
