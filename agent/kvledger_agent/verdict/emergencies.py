"""What goes before every limit: a failed instrument, a frozen, stalled, leaking or vanished engine. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.snapshot import Sample
from kvledger.status import ReadStatus, frozen_after_seconds
from kvledger.words import FindingKind, Reason, RequestState
from kvledger_agent.finding import Finding
from kvledger_agent.verdict.rulings import Ruling

_AT_WORK = (ReadStatus.OK, ReadStatus.IDLE)


def emergency(sample: Sample, findings: tuple[Finding, ...], violations: Mapping[str, float]) -> Ruling | None:
    """The gravest of these that is true of one sample: frozen, stalled, leaking, gone, in this order; None if none is.

    A ledger whose instrument has failed shows an engine as it was: nothing is concluded from it.
    """
    if sample.instrument_failure is not None:
        return Ruling(
            Reason.MISSING_SIGNALS,
            f"instrument failed: {sample.instrument_failure}",
            missing=("everything since the instrument failed",),
        )
    limit = frozen_after_seconds(sample.stats)
    if sample.status_then is ReadStatus.FROZEN:
        age = sample.heartbeat_age_seconds or 0.0
        return Ruling(Reason.NO_HEARTBEAT, f"with work to do, no heartbeat for {age:.1f} s (limit {limit:.1f} s)")
    quiet_seconds = seconds_without_progress(sample)
    if quiet_seconds is not None and quiet_seconds > limit and sample.status_then is ReadStatus.OK:
        waiting = int(sample.slots.waiting.sum())
        return Ruling(
            Reason.NO_PROGRESS,
            f"{waiting} requests wait, and for {quiet_seconds:.1f} s nobody was admitted and no token was computed, "
            "neither of a prompt nor of an answer",
        )
    if findings or any(violations.values()):
        return Ruling(Reason.LEAK, _gone(sample) + _what_is_wrong(findings, violations))
    if sample.status_then not in _AT_WORK:
        return Ruling(
            Reason.MISSING_SIGNALS,
            f"the ledger is {sample.status_then.value}: its last state",
            missing=("an engine that lives",),
        )
    return None


def seconds_without_progress(sample: Sample) -> float | None:
    """Time since a token was computed or somebody admitted, once somebody waits; None when nobody does."""
    waiting = sample.slots.state == RequestState.WAITING
    waiting |= sample.slots.state == RequestState.PREEMPTED
    if not np.any(waiting):
        return None
    since_ns = max(sample.stats.whole("last_token_ns"), int(sample.slots.queued_ns[waiting].min()))
    return max(0.0, (sample.clock_ns - since_ns) / NS_PER_SECOND)


def _gone(sample: Sample) -> str:
    """What comes before everything else of an engine that is gone."""
    return "" if sample.status_then in _AT_WORK else f"the engine is {sample.status_then.value}; in its last state: "


def _what_is_wrong(findings: tuple[Finding, ...], violations: Mapping[str, float]) -> str:
    by_kind: dict[FindingKind, list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    parts = [_one_kind(kind, alike) for kind, alike in by_kind.items()]
    parts += [f"the count of {name} blocks is off by {off:+.0f}" for name, off in violations.items() if off]
    return "; ".join(parts)


def _one_kind(kind: FindingKind, alike: list[Finding]) -> str:
    """Findings of one kind in words: blocks, whose, how they ended, what should have released them, growth.

    Told is one whose owner is proven, if there is one: of shared blocks there are only candidates.
    """
    blocks = sum(finding.block_count or 0 for finding in alike)
    first = next((finding for finding in alike if finding.owner is not None), alike[0])
    told = f"{kind.word} on {blocks} blocks"
    owner, release = first.owner, first.release
    if owner is not None:
        ended = f", {owner.ended}" if owner.ended else ""
        part = f", {first.block_count} of them" if len(alike) > 1 else ""
        told += f"{part} of request {owner.serial} (tenant {owner.tenant}{ended})"
    if release is not None:
        told += f", should have come back in publication {release.seq} (event {release.event})"
    if first.blocks_per_minute and first.seconds_to_exhaustion is not None:
        told += f", {first.blocks_per_minute:+.1f} a minute: nothing is left in {first.seconds_to_exhaustion:.0f} s"
    return told
