"""The engine's steps: how many, and where their time goes. A step ends when its output was applied."""

from __future__ import annotations

from collections import deque

from kvledger.clock import NS_PER_SECOND
from kvledger.stats import observer
from kvledger.words import StepPhase
from kvledger.writer import Ledger

_MOST_IN_FLIGHT = 64


class Steps:
    """Step counter and phase histograms. vLLM may schedule a step or two ahead of the one whose output it applies."""

    def __init__(self, ledger: Ledger) -> None:
        stats = ledger.stats
        self._values = stats.values
        self._steps, self._steps_total = stats.gauge("steps"), stats.counter("engine_steps_total")
        self._observe = observer([stats.histogram("step", phase=phase.word) for phase in StepPhase])
        self._scheduled: deque[tuple[int, int]] = deque(maxlen=_MOST_IN_FLIGHT)
        self._updated_ns = 0
        self._published_ns = 0

    def scheduled(self, began_ns: int, ended_ns: int) -> None:
        """vLLM's schedule ran from `began_ns` to `ended_ns`."""
        self._scheduled.append((began_ns, ended_ns))

    def updated(self, began_ns: int, ended_ns: int) -> None:
        """The output of the oldest scheduled step was applied: one step is complete.

        The model's share is the time since that step was scheduled, or since the last step ended if that is later:
        with several steps in flight each second is counted once.
        """
        scheduled_from, scheduled_to = self._scheduled.popleft() if self._scheduled else (began_ns, began_ns)
        self._values[self._steps] += 1
        self._values[self._steps_total] += 1
        model = max(0, began_ns - max(scheduled_to, self._updated_ns))
        self._observe(
            (
                (scheduled_to - scheduled_from) / NS_PER_SECOND,
                model / NS_PER_SECOND,
                (ended_ns - began_ns) / NS_PER_SECOND,
                self._published_ns / NS_PER_SECOND,
            )
        )
        self._updated_ns, self._published_ns = ended_ns, 0

    def published(self, elapsed_ns: int) -> None:
        """The tap of a publication took this long of the engine's time: counted with the step that ends next."""
        self._published_ns += elapsed_ns
