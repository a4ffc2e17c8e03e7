"""What was counted within a window: differences between its first and its last moment. Pure.

What the source does not report is None, never 0; so is everything of a single moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.clock import NS_PER_SECOND
from kvledger_agent.sums import over
from kvledger_agent.verdict.moments import Moment

LEAST_SECONDS = 0.5
"""Between two looks: what is counted in less says nothing of what goes on."""
PHASES = tuple(f"step_{phase}_seconds" for phase in ("schedule", "model", "sample", "publish"))


class Change:
    """Differences between the first and the last moment of a window; None where they are too near to each other."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        self._first, self._last = moments[0], moments[-1]
        self.seconds = (self._last.clock_ns - self._first.clock_ns) / NS_PER_SECOND
        self.long_enough = self.seconds >= LEAST_SECONDS

    def of(self, name: str) -> float | None:
        """What was counted of one total; None where it is not known."""
        if not self.long_enough or name not in self._first.totals or name not in self._last.totals:
            return None
        return max(0.0, self._last.totals[name] - self._first.totals[name])

    def sum_of(self, *names: str) -> float | None:
        """What was counted of several; None as soon as one is not known."""
        known = [value for name in names if (value := self.of(name)) is not None]
        return sum(known) if len(known) == len(names) else None

    def part_of_time(self, name: str) -> float | None:
        """Seconds counted in the window ÷ its length; a step that began before it may make that more than 1."""
        seconds = self.of(name)
        return None if seconds is None else min(1.0, seconds / self.seconds)

    def tokens_per_step(self) -> float | None:
        """Tokens of prompts and answers in one step, on average."""
        return over(self.sum_of("prompt_tokens_total", "generation_tokens_total"), self.of("engine_steps_total"))

    def new_tokens(self) -> float | None:
        """Tokens computed for the first time. What was looked up in the prefix cache and not found was computed."""
        generated, again = self.of("generation_tokens_total"), self.of("recomputed_tokens_total")
        if generated is None or again is None:
            return None
        queried, hit = self.of("prefix_queried_tokens_total"), self.of("prefix_hit_tokens_total")
        if not queried or hit is None:
            return self.sum_of("prompt_tokens_total", "generation_tokens_total")
        return generated + max(0.0, queried - hit - again)

    def refused(self) -> dict[str, float] | None:
        """Requests refused in the window, by reason; None where that is not known."""
        before, after = self._first.refused, self._last.refused
        if before is None or after is None or not self.long_enough:
            return None
        return {reason: max(0.0, count - before.get(reason, 0.0)) for reason, count in after.items()}

    def arrived_by_tenant(self) -> dict[str, float]:
        """Requests that ended or were refused in the window, by tenant; empty where that is not known."""
        before, after = self._first.arrived_by_tenant, self._last.arrived_by_tenant
        if before is None or after is None or not self.long_enough:
            return {}
        return {tenant: max(0.0, count - before.get(tenant, 0.0)) for tenant, count in after.items()}

    def arrivals(self) -> float | None:
        """Requests that came in the window, refused ones included: those ended and refused, and who is there more."""
        ended, refused = self.of("requests_total"), self.refused()
        before, after = _there(self._first), _there(self._last)
        if ended is None or refused is None or before is None or after is None:
            return None
        return max(0.0, ended + sum(refused.values()) + after - before)


def since_refusals_are_known(moments: Sequence[Moment]) -> Sequence[Moment]:
    """An engine's page, which alone may count them, is read later than its ledger: what came before is left out."""
    known = (number for number, moment in enumerate(moments) if moment.refused is not None)
    return moments[next(known, 0) :]


def _there(moment: Moment) -> float | None:
    return None if moment.running is None or moment.waiting is None else moment.running + moment.waiting
