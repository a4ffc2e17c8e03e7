"""The verdict on a scraped engine: what its findings ask for, or that nothing is seen, and what cannot be. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from kvledger.words import Action, FindingKind, Verdict
from kvledger_agent.observation import Finding, VerdictView
from kvledger_agent.scrape.profile import EngineProfile

_GRAVEST: tuple[tuple[FindingKind, Verdict, Action], ...] = (
    (FindingKind.FROZEN_COUNTERS, Verdict.FROZEN, Action.LOOK_DOWNSTREAM),
    (FindingKind.WAITING_WITHOUT_RUNNING, Verdict.STALLED, Action.LOOK_DOWNSTREAM),
    (FindingKind.DEFERRED_WITHOUT_PROGRESS, Verdict.STALLED, Action.LOOK_DOWNSTREAM),
    (FindingKind.USAGE_OUT_OF_RANGE, Verdict.LEAKING, Action.FIX_LEAK),
    (FindingKind.IDLE_HOLD, Verdict.LEAKING, Action.FIX_LEAK),
)


def scraped_verdict(
    profile: EngineProfile, findings: Iterable[Finding], judged: Iterable[FindingKind], *, gone: str | None = None
) -> VerdictView:
    """The gravest finding's verdict. `gone` says why there is no newer page: then nothing is known of the engine."""
    if gone is not None:
        return VerdictView(
            verdict=Verdict.UNKNOWN, action=Action.NONE, evidence=f"the last good page is shown, since then: {gone}"
        )
    by_kind = {finding.kind: finding for finding in findings}
    for kind, verdict, action in _GRAVEST:
        if (finding := by_kind.get(kind)) is not None:
            evidence = f"{finding.certainty.word}: {finding.known}"
            return VerdictView(verdict=verdict, action=action, evidence=evidence)
    words = [kind.word for kind in judged]
    if not words:
        return VerdictView(
            verdict=Verdict.UNKNOWN,
            action=Action.NONE,
            evidence=f"this page allows no judgement; without a ledger {profile.title} cannot tell: {profile.blind}",
        )
    return VerdictView(
        verdict=Verdict.HEALTHY,
        action=Action.NONE,
        evidence=f"none of {', '.join(words)} is seen; without a ledger {profile.title} cannot tell: {profile.blind}",
    )
