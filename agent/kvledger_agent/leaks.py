"""Suspects over time: which of them last long enough to be findings. Pure: it is told what each sample saw.

A suspicion is about one block (or request). It goes on while every audit that can judge the block finds something wrong
with it, whatever else happens to it: a leaked prefix block goes on being shared, and one that was freed twice shows
as doubly listed first and as held without references next. It ends with the first audit that finds the block in order.

- Of a live engine it becomes a finding once it has lasted for the grace, in counted time and counted samples
  (`kvledger_agent.grace`). Pins and ended requests bring a time limit of their own, so one further sample suffices.
- A block held without a reference, listed twice or written while shared corrupts content at once, and often looks
  sound again a second later. No operation explains such a state in a published ledger, so a second audit on the spot
  suffices, and the finding stays open for a minute after it was last seen.
- Of an engine that is gone the file is final, and no grace can add anything. A publication that was cut short stamped
  everything it touched, and what carries its stamp is not suspected at all. So everything suspected is a finding at
  once if no publication was cut short, and otherwise if it had been suspected while the engine lived, or is older
  than the last complete publication, which then left it as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kvledger.clock import NS_PER_SECOND
from kvledger.invariants import Suspect
from kvledger.words import FindingKind
from kvledger_agent.grace import Grace, GraceClock

_OWN_LIMIT = frozenset({FindingKind.PIN_OVERDUE, FindingKind.FINISHING_OVERDUE})
AT_ONCE = frozenset({FindingKind.MISSING_REFERENCE, FindingKind.DOUBLE_LISTED, FindingKind.SHARED_WRITE})
STAYS_OPEN_SECONDS = 60.0
Key = tuple[FindingKind, int]


@dataclass(frozen=True, slots=True)
class Final:
    """The state of a file that nobody writes any more: its last complete publication, and whether one was cut short."""

    published_seq: int
    cut_short: bool


@dataclass(frozen=True, slots=True)
class Began:
    """When the suspicion of a block began: counted time and samples, and the stamp the block had then.

    `clean_seq` is the publication of the audit before, which did not suspect it; None if there was none.
    """

    first_seq: int
    clean_seq: int | None
    clock_ns: int
    elapsed_ns: int
    samples: int


@dataclass(slots=True)
class Track:
    """One kind of contradiction on a block under suspicion; a finding once `found_clock_ns` is set."""

    suspect: Suspect
    began: Began
    seen_clock_ns: int
    seen_elapsed_ns: int
    found_clock_ns: int | None = None


def key_of(suspect: Suspect) -> Key:
    """(kind, what is under suspicion): a block id, or minus the serial of a request."""
    return suspect.kind, suspect.block if suspect.block >= 0 else -suspect.owner


class LeakTracker:
    """All suspicions of one ledger."""

    def __init__(self) -> None:
        self._tracks: dict[Key, Track] = {}
        self._began: dict[int, Began] = {}
        self._judged_seq: int | None = None

    @property
    def open(self) -> list[Track]:
        """The findings, in order of their first sight."""
        return [track for track in self._tracks.values() if track.found_clock_ns is not None]

    @property
    def undecided(self) -> int:
        """Contradictions that are no findings yet."""
        return sum(track.found_clock_ns is None for track in self._tracks.values())

    @property
    def open_blocks(self) -> set[int]:
        """Blocks that findings name."""
        return {track.suspect.block for track in self.open}

    @property
    def blocks(self) -> list[int]:
        """Blocks under suspicion, which the next audit must be asked about."""
        return [subject for subject in self._began if subject >= 0]

    def wants_second_look(self, suspects: Iterable[Suspect]) -> bool:
        """Whether one of `suspects` would be a finding at once, were it confirmed."""
        fresh = (key_of(suspect) for suspect in suspects if suspect.kind in AT_ONCE)
        return any(key not in self._tracks or self._tracks[key].found_clock_ns is None for key in fresh)

    def update(
        self,
        suspects: Iterable[Suspect],
        *,
        judged: Callable[[int], bool],
        published_seq: int,
        clock_ns: int,
        clock: GraceClock,
        grace: Grace,
        confirmed: frozenset[Key] = frozenset(),
        final: Final | None = None,
    ) -> None:
        """Take in one audit. `judged(block)` says whether it could judge a block it does not suspect.

        `confirmed` is what a second audit on the spot suspected, too.
        """
        seen = {key_of(suspect): suspect for suspect in suspects}
        before = self._began
        subjects = {subject for _, subject in seen}
        unjudged = {s for s in before if s not in subjects and s >= 0 and not judged(s)}
        self._began = {s: began for s, began in before.items() if s in subjects or s in unjudged}
        self._tracks = {
            key: track
            for key, track in self._tracks.items()
            if key in seen or key[1] in unjudged or _stays_open(track, clock)
        }
        for key, suspect in seen.items():
            began = self._began.get(key[1])
            if began is None:
                began = Began(suspect.stamp, self._judged_seq, clock_ns, clock.elapsed_ns, clock.samples)
                self._began[key[1]] = began
            track = self._tracks.setdefault(key, Track(suspect, began, clock_ns, clock.elapsed_ns))
            track.suspect, track.seen_clock_ns, track.seen_elapsed_ns = suspect, clock_ns, clock.elapsed_ns
            proven = key in confirmed and suspect.kind in AT_ONCE
            if track.found_clock_ns is None and (proven or _is_finding(track, key[1] in before, clock, grace, final)):
                track.found_clock_ns = clock_ns
        self._judged_seq = published_seq


def _stays_open(track: Track, clock: GraceClock) -> bool:
    recent = clock.elapsed_ns - track.seen_elapsed_ns <= STAYS_OPEN_SECONDS * NS_PER_SECOND
    return recent and track.found_clock_ns is not None and track.suspect.kind in AT_ONCE


def _is_finding(track: Track, was_known: bool, clock: GraceClock, grace: Grace, final: Final | None) -> bool:
    if final is not None:
        return was_known or not final.cut_short or track.suspect.stamp < final.published_seq
    samples = clock.samples - track.began.samples
    if track.suspect.kind in _OWN_LIMIT:
        return samples >= 1
    lasted_seconds = (clock.elapsed_ns - track.began.elapsed_ns) / NS_PER_SECOND
    return samples >= grace.samples and lasted_seconds >= grace.seconds
