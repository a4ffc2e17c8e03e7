"""The verdict on a scraped engine: what its findings ask for, or what its numbers tell, and what cannot be told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from kvledger.words import FindingKind, Reason, Verdict
from kvledger_agent.finding import Finding
from kvledger_agent.observation import Observation, VerdictView
from kvledger_agent.scrape.profile import EngineProfile
from kvledger_agent.verdict.judge import Judge
from kvledger_agent.verdict.rulings import Ruling

_GRAVEST: tuple[tuple[FindingKind, Reason], ...] = (
    (FindingKind.FROZEN_COUNTERS, Reason.NO_HEARTBEAT),
    (FindingKind.WAITING_WITHOUT_RUNNING, Reason.NO_PROGRESS),
    (FindingKind.DEFERRED_WITHOUT_PROGRESS, Reason.NO_PROGRESS),
    (FindingKind.USAGE_OUT_OF_RANGE, Reason.LEAK),
    (FindingKind.IDLE_HOLD, Reason.LEAK),
)


def scraped_verdict(
    judge: Judge, profile: EngineProfile, observation: Observation, *, gone: str | None = None
) -> VerdictView:
    """The gravest finding's verdict, else what the window tells. `gone` says why there is no newer page."""
    view = judge.judge(observation, emergency=_emergency(observation.findings or (), gone))
    if gone is not None or view.verdict not in (Verdict.HEALTHY, Verdict.UNKNOWN):
        return view
    return replace(view, evidence=f"{view.evidence}; {_blind(profile, observation.judged)}")


def _emergency(findings: Iterable[Finding], gone: str | None) -> Ruling | None:
    if gone is not None:
        told = f"the last good page is shown, since then: {gone}"
        return Ruling(Reason.MISSING_SIGNALS, told, missing=("a page of now",))
    by_kind = {finding.kind: finding for finding in findings}
    for kind, reason in _GRAVEST:
        if (finding := by_kind.get(kind)) is not None:
            return Ruling(reason, f"{finding.certainty.word}: {finding.known}")
    return None


def _blind(profile: EngineProfile, judged: Iterable[FindingKind]) -> str:
    """What was looked for, and what a page of this engine cannot show."""
    words = [kind.word for kind in judged]
    seen = f"none of {', '.join(words)} is seen" if words else "no finding can be judged on this page"
    return f"{seen}; without a ledger {profile.title} cannot tell: {profile.blind}"
