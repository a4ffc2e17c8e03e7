"""Notes: what is legitimate and worth knowing, and no finding: a prefix that keeps much of the pool, sharing that costs
more than it saves. They make nobody `leaking`. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.words import NoteKind
from kvledger_agent.audit_facts import AuditFacts
from kvledger_agent.evidence import Registry
from kvledger_agent.finding import Note
from kvledger_agent.sharing_account import SharingView

PINNING_SHARE = 0.25
"""Of the pool, from which on a prefix is worth a note."""
LEAST_ADMISSIONS = 20
"""Below so many admissions the account of sharing says little."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What notes are made of."""

    facts: AuditFacts
    capacity_blocks: int
    sharing: SharingView | None


def notes_of(sources: Sources, registry: Registry) -> tuple[Note, ...]:
    """The notes on one engine, none where there is nothing to note."""
    return tuple(note for note in (_pinning(sources, registry), _costs(sources.sharing)) if note is not None)


def _pinning(sources: Sources, registry: Registry) -> Note | None:
    prefix = sources.facts.largest_prefix
    if prefix is None or prefix.blocks < PINNING_SHARE * sources.capacity_blocks:
        return None
    share = prefix.blocks / sources.capacity_blocks
    return Note(
        kind=NoteKind.PREFIX_PINNING,
        evidence=f"a prefix that request {prefix.serial} brought in holds {prefix.blocks} blocks, {share:.0%} of the "
        f"pool, in {prefix.tables} live tables: it goes when the last of them ends",
        blocks=prefix.blocks,
        request=registry.find(prefix.serial),
    )


def _costs(sharing: SharingView | None) -> Note | None:
    if sharing is None or sharing.total.net_seconds is None or sharing.total.net_seconds >= 0:
        return None
    total = sharing.total
    if total.admissions < LEAST_ADMISSIONS or total.saved_seconds is None:
        return None
    return Note(
        kind=NoteKind.SHARING_COSTS_MORE,
        evidence=f"sharing prefixes took {total.overhead_seconds:.3g} s and saved {total.saved_seconds:.3g} s of "
        f"prefill in {total.admissions} admissions since this start: without it requests would be served sooner",
        blocks=None,
        request=None,
    )
