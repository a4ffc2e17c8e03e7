"""What is seen to be wrong, or worth knowing, of an engine, and its evidence. Owns names and shapes; judges nothing."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.words import Certainty, FindingKind, NoteKind

MAX_LISTED = 64
"""Blocks of one finding that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRef:
    """A request as a finding names it. `ended` is the finish reason, None when unknown or still running."""

    serial: int
    id_head: str | None = None
    id_tail: str | None = None
    tenant: str | None = None
    ended: str | None = None
    ended_clock_ns: int | None = None
    live: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The lifecycle event with which a request should have given its blocks back: what the engine said it did.

    `blocks` are those it held at `cancelled`, `finished` and `preempted`, and those it gave back at `released`.
    """

    event: str
    seq: int
    clock_ns: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is legitimate and worth knowing. `request` is the one it is about, if it is about one."""

    kind: NoteKind
    evidence: str
    blocks: int | None
    request: RequestRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is seen to be wrong, with its evidence: blocks of one kind, one owner and one publication.

    `owner` is set only if it is proven; otherwise `candidates` are the requests that may have done it and `known` says
    why no more is known. `blocks` lists at most `MAX_LISTED` of `block_count` ids. Times are of the ledger clock:
    `since` the publication that first showed it, `found` when it became a finding, `seen` when it last showed.
    `release` is the event that should have released the owner's blocks, None where it is not known. `blocks_per_minute`
    and `seconds_to_exhaustion` are of all findings of the kind: how they grow, and how long free and cached blocks last
    at that; None while that is not known or nothing grows.
    Of a scraped engine, `block_count` may be unknown, `seq` numbers the scrapes, times are of the agent's monotonic
    clock, and `blind` says what this engine cannot tell about it; it is None for a ledger, which tells all there is.
    """

    kind: FindingKind
    blocks: tuple[int, ...]
    block_count: int | None
    bytes: int | None
    seq: int
    since_clock_ns: int
    since_wall_seconds: float | None
    found_clock_ns: int
    seen_clock_ns: int
    owner: RequestRef | None
    candidates: tuple[RequestRef, ...]
    known: str
    release: Release | None = None
    blocks_per_minute: float | None = None
    seconds_to_exhaustion: float | None = None
    certainty: Certainty = Certainty.CERTAIN
    blind: str | None = None
