"""Nobody waits for blocks or slots: the model is the time, or the engine is in full or light use. Pure."""

from __future__ import annotations

from kvledger.words import Reason
from kvledger_agent.verdict.change import LEAST_SECONDS
from kvledger_agent.verdict.rulings import SECOND_LOOK, Ruling, percent
from kvledger_agent.verdict.signals import Signals
from kvledger_agent.verdict.thresholds import Thresholds


def compute_ruling(signals: Signals, limits: Thresholds) -> Ruling | None:
    """Steps are the time: the model is always at work, and the slots or tokens of a step are used, or all wait for it.

    An engine with one request is always in a step, too, so that being busy alone says nothing.
    """
    if signals.model is None or signals.model < limits.busy or signals.room is None or signals.room < limits.room:
        return None
    used = max(signals.slots_used or 0.0, signals.tokens_used or 0.0)
    step_waits = 0.0 if signals.wait is None else signals.wait.step
    if used < limits.slots and step_waits < limits.waits:
        return None
    step = "" if signals.step_seconds is None else f", a step takes {1000 * signals.step_seconds:.0f} ms"
    return Ruling(
        Reason.COMPUTE,
        f"{percent(signals.model)} of the time the model computes{step}; {percent(signals.slots_used)} of the batch "
        f"slots are used, {percent(signals.room)} of the pool is free or cached, and nobody waits for blocks",
    )


def idle_or_full(signals: Signals, limits: Thresholds) -> Ruling:
    """Nobody waits long. Without the times of steps a busy engine may still be bound by its compute."""
    if signals.room is not None and signals.room < limits.room:
        return Ruling(Reason.FULL_USE, f"{percent(signals.used)} of the pool is held, and nobody waits long")
    room = "" if signals.room is None else f"; {percent(signals.room)} of the pool is free or cached"
    if signals.idle or (signals.running == 0 and not signals.waiting):
        return Ruling(Reason.LIGHT, f"no work is there{room}")
    if signals.model is None and signals.running:
        told = f"nobody waits long ({signals.running:.0f} run)"
        if signals.span_seconds < LEAST_SECONDS:
            why = "whether the model is the limit takes a second look"
            return Ruling(Reason.MISSING_SIGNALS, f"{told}; {why}", missing=(SECOND_LOOK,))
        why = "whether the model is the limit is not reported"
        return Ruling(Reason.MISSING_SIGNALS, f"{told}; {why}", missing=("step times",))
    return Ruling(Reason.LIGHT, f"nobody waits long{room}")
