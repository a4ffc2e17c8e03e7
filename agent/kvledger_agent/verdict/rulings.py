"""A ruling: the reason, the sentence that supports it, its action. Owns the shape and how numbers are written."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.reasons import BY_REASON
from kvledger.words import Action, Reason, Verdict

SECOND_LOOK = "a second look"
"""What is missing where a source was looked at once: nothing that is counted says anything yet."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """One judgement. `missing` names unknown signals."""

    reason: Reason
    evidence: str
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict that the reason belongs to."""
        return BY_REASON[self.reason].verdict

    @property
    def action(self) -> Action:
        """The reason's action."""
        return BY_REASON[self.reason].action


def percent(share: float | None) -> str:
    """A share in percent; `unknown` for None."""
    return "unknown" if share is None else f"{100 * share:.0f} %"
