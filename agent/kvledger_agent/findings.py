"""Open suspicions as findings with their evidence. Joins and groups; decides nothing about what is a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.limits import Limits
from kvledger.pins import PinTable
from kvledger.words import FindingKind
from kvledger_agent.evidence import BlockHistory, Cause, Registry, cause_of, cause_of_pin
from kvledger_agent.finding import MAX_LISTED, Finding
from kvledger_agent.leaks import Track
from kvledger_agent.observation import Clock
from kvledger_agent.sums import sum_if_known
from kvledger_agent.window import Window

GroupKey = tuple[FindingKind, int, int]
CauseKey = tuple[FindingKind, int | None, tuple[int, ...], str]
_UNKNOWN = BlockHistory(one_holder=False, group=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What says who did it: lifecycle events (None where none has been read), requests, and pins as of `now_ns`."""

    events: NDArray[Any] | None
    registry: Registry
    pins: PinTable
    now_ns: int


class FindingBook:
    """The findings of one ledger. Remembers each one's cause, since rings are overwritten, and how each kind grows."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._histories: dict[int, BlockHistory] = {}
        self._causes: dict[GroupKey, tuple[Cause, int]] = {}
        self._growth: dict[FindingKind, Window] = {}

    def note(self, histories: dict[int, BlockHistory], *, relevant: set[int]) -> None:
        """Add the histories of blocks that have come under suspicion; forget all but the `relevant` blocks."""
        self._histories = {b: known for b, known in (self._histories | histories).items() if b in relevant}

    def lacks(self, blocks: Iterable[int]) -> list[int]:
        """Those of `blocks` whose history is not known yet."""
        return [block for block in dict.fromkeys(blocks) if block not in self._histories]

    def assemble(
        self,
        tracks: list[Track],
        *,
        clock: Clock,
        traces: Traces,
        available_blocks: int | None = None,
    ) -> tuple[Finding, ...]:
        """One finding per kind, cause and publication, in order of their first sight. `available_blocks` are free or
        cached: what is left for leaks to grow into.
        """
        growth = self._growth_per_minute(tracks, clock.published_ns)
        grouped: dict[GroupKey, list[Track]] = {}
        for track in tracks:
            grouped.setdefault(self._group_key(track), []).append(track)
        self._causes = {key: cause for key, cause in self._causes.items() if key in grouped}
        return tuple(
            replace(
                self._finding(key, members, self._cause(key, members, traces), clock, growth[key[0]]),
                seconds_to_exhaustion=_lasts_seconds(available_blocks, growth[key[0]]),
            )
            for key, members in grouped.items()
        )

    def _history(self, track: Track) -> BlockHistory:
        return self._histories.get(track.suspect.block, _UNKNOWN)

    def _group_key(self, track: Track) -> GroupKey:
        named = track.suspect.block < 0 or self._history(track).one_holder
        return track.suspect.kind, track.suspect.owner if named else 0, track.began.first_seq

    def _cause(self, key: GroupKey, members: list[Track], traces: Traces) -> tuple[Cause, int]:
        known = self._causes.get(key)
        if known is None:
            cause = _found(key, members[0], traces)
            known = self._causes[key] = cause, _began_ns(key[2], traces.events, members)
        return known

    def _finding(
        self, key: GroupKey, members: list[Track], known: tuple[Cause, int], clock: Clock, growth: float | None
    ) -> Finding:
        cause, since_ns = known
        blocks = sorted(track.suspect.block for track in members if track.suspect.block >= 0)
        return Finding(
            kind=key[0],
            blocks=tuple(blocks[:MAX_LISTED]),
            block_count=len(blocks) or members[0].suspect.excess,
            bytes=self._bytes(members),
            seq=key[2],
            since_clock_ns=since_ns,
            since_wall_seconds=clock.wall_seconds(since_ns),
            found_clock_ns=min(track.found_clock_ns or 0 for track in members),
            seen_clock_ns=max(track.seen_clock_ns for track in members),
            owner=cause.owner,
            candidates=cause.candidates,
            known=cause.known,
            release=cause.release,
            blocks_per_minute=growth,
        )

    def _bytes(self, members: list[Track]) -> int | None:
        """Bytes of the blocks; None where a group's block size in bytes is unknown."""
        groups = self._limits.groups
        sizes = [groups[min(self._history(track).group, len(groups) - 1)].block_bytes for track in members]
        return sum(sizes) if all(sizes) else None

    def _growth_per_minute(self, tracks: list[Track], clock_ns: int) -> dict[FindingKind, float | None]:
        counts = Counter(track.suspect.kind for track in tracks)
        self._growth = {kind: window for kind, window in self._growth.items() if kind in counts}
        rates: dict[FindingKind, float | None] = {}
        for kind, count in counts.items():
            window = self._growth.setdefault(kind, Window())
            window.add(clock_ns, count)
            rate = window.growth_per_second()
            rates[kind] = None if rate is None else 60 * rate
        return rates


def _found(key: GroupKey, first: Track, traces: Traces) -> Cause:
    kind, owner, seq = key
    if kind is FindingKind.PIN_OVERDUE:
        return cause_of_pin(
            first.suspect.block,
            traces.pins,
            now_ns=traces.now_ns,
            events=traces.events,
            registry=traces.registry,
        )
    return cause_of(
        kind,
        owner,
        one_holder=owner != 0,
        seq=seq,
        clean_seq=first.began.clean_seq,
        events=traces.events,
        registry=traces.registry,
    )


def cause_key(finding: Finding) -> CauseKey:
    """What findings have in common that people take for one: kind, owner, candidates (serials), what is known."""
    owner = None if finding.owner is None else finding.owner.serial
    return finding.kind, owner, tuple(ref.serial for ref in finding.candidates), finding.known


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding per kind, cause and what is known, for people: one leak's blocks may have changed one by one.

    Blocks and bytes are summed up; `seq` and times are those of the first to show, `seen` of the last.
    """
    grouped: dict[CauseKey, list[Finding]] = {}
    for finding in findings:
        grouped.setdefault(cause_key(finding), []).append(finding)
    return tuple(_one(alike) for alike in grouped.values())


def _one(alike: list[Finding]) -> Finding:
    first = min(alike, key=lambda finding: finding.since_clock_ns)
    return replace(
        first,
        blocks=tuple(sorted(block for finding in alike for block in finding.blocks)[:MAX_LISTED]),
        block_count=sum_if_known(finding.block_count for finding in alike),
        bytes=sum_if_known(finding.bytes for finding in alike),
        found_clock_ns=min(finding.found_clock_ns for finding in alike),
        seen_clock_ns=max(finding.seen_clock_ns for finding in alike),
    )


def _lasts_seconds(available_blocks: int | None, blocks_per_minute: float | None) -> float | None:
    """How long `available_blocks` last at a growth; None where that is unknown or nothing grows."""
    if available_blocks is None or blocks_per_minute is None or blocks_per_minute <= 0:
        return None
    return 60 * available_blocks / blocks_per_minute


def _began_ns(seq: int, events: NDArray[Any] | None, members: list[Track]) -> int:
    """When publication `seq` was, from an event in it; otherwise when it was first seen."""
    if events is not None:
        times = events["time_ns"][events["seq"] == np.uint64(seq)]
        if len(times):
            return int(times[0])
    return min(track.began.clock_ns for track in members)
