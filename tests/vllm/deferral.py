"""vLLM's deferred frees, switched on and off while it works: what it does with a connector only, and from its start."""

from __future__ import annotations

from typing import Any


class Deferral:
    """Whether one scheduler defers frees, at a test's wish. Told of each step that is scheduled or processed.

    vLLM compares two numbers of steps, both counted only while frees are deferred. A step that is scheduled before a
    switch and processed after it would be in one of them alone: frees would come too early from then on, or steps too
    late, and those that the next step waits for never.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler, self._in_flight = scheduler, 0

    def scheduled(self, output: Any) -> None:
        """A step begins with this scheduler output."""
        self._in_flight += output.total_num_scheduled_tokens > 0

    def processed(self, output: Any) -> None:
        """The step of this scheduler output has ended."""
        self._in_flight -= output.total_num_scheduled_tokens > 0

    def switch(self, on: bool) -> None:
        """From now on, or no more: what was deferred is given back then. Idempotent."""
        scheduler = self._scheduler
        if on == scheduler.defer_block_free:
            return
        scheduler.defer_block_free = on
        scheduler.processed_step_seq = scheduler.sched_step_seq - (self._in_flight if on else 0)
        if not on:
            scheduler._drain_deferred_frees()
