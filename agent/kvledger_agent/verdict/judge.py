"""The judge of one engine: remembers a window of moments and the ruling in force. Used by one thread."""

from __future__ import annotations

from kvledger_agent.observation import Observation, VerdictView
from kvledger_agent.verdict.moments import Insight, MomentWindow, moment_of
from kvledger_agent.verdict.request_time import RequestTime
from kvledger_agent.verdict.ruling import rule
from kvledger_agent.verdict.rulings import Ruling
from kvledger_agent.verdict.signals import signals_of
from kvledger_agent.verdict.steady import Steady

WINDOW_SECONDS = 60.0


class Judge:
    """Judges one engine's observations in the order in which they were made."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self.window_seconds = window_seconds
        self.allocating: float | None = None
        """The allocator's part of the steps' time in the window, as of the last look; None where it is not known."""
        self._moments, self._steady = MomentWindow(window_seconds), Steady(window_seconds)

    def judge(
        self,
        observation: Observation,
        *,
        emergency: Ruling | None = None,
        insight: Insight | None = None,
        time: RequestTime | None = None,
    ) -> VerdictView:
        """The verdict on the newest observation. An `emergency` goes before what the window says."""
        moment = moment_of(observation, insight)
        ruling = emergency
        if moment is not None:
            signals = signals_of(self._moments.add(moment), time)
            self.allocating = signals.allocating
            ruling = self._steady.update(emergency or rule(signals), moment.clock_ns)
        assert ruling is not None, "an observation without a clock is judged by what is grave only"
        return VerdictView(
            verdict=ruling.verdict,
            action=ruling.action,
            evidence=ruling.evidence + _doubt(observation, ruling),
            reason=ruling.reason,
            missing=ruling.missing,
            request_time=time,
            window_seconds=self.window_seconds,
        )


def _doubt(observation: Observation, ruling: Ruling) -> str:
    """Open suspicions change no verdict, but nobody is told then that nothing leaks."""
    if not observation.undecided or ruling.verdict.word not in ("healthy", "pool_bound"):
        return ""
    return f"; suspicions under watch: {observation.undecided}"
