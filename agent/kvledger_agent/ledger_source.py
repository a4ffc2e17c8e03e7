"""One ledger as a source: everything remembered between two looks at it. Reads through `kvledger.reader` only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvledger.audit import Audit
from kvledger.buffers import Buffers
from kvledger.clock import NS_PER_SECOND
from kvledger.invariants import Suspect, counts, suspects
from kvledger.reader import Reader
from kvledger.snapshot import Sample
from kvledger.status import ReadStatus
from kvledger_agent.audit_facts import AuditFacts, facts_of
from kvledger_agent.drain import Drain
from kvledger_agent.evidence import Registry, histories
from kvledger_agent.finding import Finding, Note
from kvledger_agent.findings import FindingBook, Traces
from kvledger_agent.grace import Grace, GraceClock, grace_of
from kvledger_agent.leaks import Final, Key, LeakTracker, key_of
from kvledger_agent.lengths import length_view
from kvledger_agent.lives import lives_of
from kvledger_agent.notes import Sources, notes_of
from kvledger_agent.observation import Observation
from kvledger_agent.observe import (
    clock_of,
    groups_of,
    identity_of,
    is_cut_short,
    is_final,
    liveness_of,
    pool_of,
)
from kvledger_agent.observe_requests import requests_view
from kvledger_agent.observe_totals import totals_of
from kvledger_agent.peak_running import PeakRunning
from kvledger_agent.sharing_account import SharingView, sharing_view
from kvledger_agent.verdict.emergencies import emergency
from kvledger_agent.verdict.holders import holders_of
from kvledger_agent.verdict.judge import WINDOW_SECONDS, Judge
from kvledger_agent.verdict.moments import Insight
from kvledger_agent.verdict.queue_head import queue_head
from kvledger_agent.verdict.request_time import RequestTime, request_time
from kvledger_agent.violations import ViolationTracker
from kvledger_agent.waits import WaitsView, waits_view
from kvledger_agent.window import Window

Complete = Callable[[Observation], Observation]
"""Adds to a ledger's observation what only another source of the same engine knows; before it is judged."""
MOST_SUSPECTS = 1 << 16
KEPT_SUMMARIES = 1 << 13


def as_it_is(observation: Observation) -> Observation:
    """Nobody else knows anything of the engine."""
    return observation


class LedgerSource:
    """A reader, the history of its rings, and the trackers. One thread uses it.

    A ledger whose engine is gone is looked at once and its observation kept: the file will not change any more.
    """

    def __init__(
        self, reader: Reader, *, price_per_hour: float | None = None, verdict_window_seconds: float = WINDOW_SECONDS
    ) -> None:
        self.reader = reader
        self.identity = identity_of(reader.head)
        self.events, self.summaries = Drain(reader.events), Drain(reader.summaries, kept=KEPT_SUMMARIES)
        self._price_per_hour = price_per_hour
        self._clock, self._leaks, self._violations = GraceClock(), LeakTracker(), ViolationTracker()
        self._book, self._growth = FindingBook(reader.head.limits), Window()
        self._peak_running, self._fresh_events = PeakRunning(), 0
        self._bench = Judge(verdict_window_seconds)
        self.overflows: int | None = None
        """Records for which the ledger had no room, ever; None before the first look."""
        self._last: Observation | None = None
        self._last_final: ReadStatus | None = None

    @classmethod
    def open(
        cls,
        path: Path,
        buffers: Buffers | None = None,
        *,
        price_per_hour: float | None = None,
        verdict_window_seconds: float = WINDOW_SECONDS,
    ) -> LedgerSource:
        """Open the file. Raises a `LedgerUnreadable` subclass or `FileNotFoundError`."""
        return cls(
            Reader.open(path, buffers), price_per_hour=price_per_hour, verdict_window_seconds=verdict_window_seconds
        )

    @property
    def lost(self) -> int:
        """Ring records that were overwritten before they were read."""
        return self.events.lost + self.summaries.lost

    @property
    def retries(self) -> int:
        """Looks that had to be repeated because the writer was active."""
        return self.reader.retries

    def close(self) -> None:
        """Release the file. Idempotent."""
        self.reader.close()

    def look(self, now_ns: int | None = None, complete: Complete = as_it_is) -> Observation:
        """Sample, drain, audit, complete, judge. `now_ns` defaults to CLOCK_MONOTONIC. Raises `LedgerUnreadable`."""
        sample = self.reader.sample(now_ns)
        self.overflows = max(0, sample.control["overflows"])
        final = is_final(sample)
        if final and self._last is not None and self._last_final is sample.status:
            return complete(self._last)
        self._fresh_events = self.events.pull()
        self.summaries.pull()
        self._clock.tick(sample)
        alone, facts = self._observe(sample, final)
        whole = complete(alone)
        verdict = self._bench.judge(
            whole,
            emergency=emergency(sample, alone.findings or (), self._violations.lasting),
            insight=_insight(sample, facts, alone),
            time=self._request_time(sample),
        )
        self._last, self._last_final = replace(alone, verdict=verdict), sample.status if final else None
        return replace(whole, verdict=verdict)

    def waits(self, window_seconds: float) -> WaitsView:
        """Where requests' time went in the last `window_seconds`, from a sample of now. Raises `LedgerUnreadable`."""
        sample = self.reader.sample()
        self.summaries.pull()
        lives = lives_of(sample, self.summaries.records())
        return waits_view(sample, lives, window_seconds, allocating=self._bench.allocating)

    def _observe(self, sample: Sample, final: bool) -> tuple[Observation, AuditFacts]:
        """What the ledger alone shows, not judged yet, and what the audit found."""
        sharing = sharing_view(self.reader.prefix_accounts(), sample.stats, self.reader.head.limits)
        facts, findings, notes = self._audit(sample, final, sharing)
        if (active := sample.stats.gauge("active_blocks")) is not None:
            self._growth.add(sample.now_ns, active)
        growth = None if final else self._growth.growth_per_second()
        undecided = self._leaks.undecided + self._violations.undecided
        lengths = length_view(
            self.reader.head.limits, self.summaries.records(), sample.tenants, sample.tenant_quota_blocks
        )
        events = self.events.records()
        fresh = None if events is None or not self._fresh_events else events[-self._fresh_events :]
        observation = Observation(
            identity=self.identity,
            liveness=liveness_of(sample),
            clock=clock_of(sample),
            published_seq=sample.published_seq,
            pool=pool_of(sample, facts, self.reader.peaks(), growth),
            groups=groups_of(sample, facts),
            requests=requests_view(sample, lengths, self._peak_running.update(fresh, sample)),
            totals=totals_of(sample, self._price_per_hour),
            findings=findings,
            violations=dict(self._violations.lasting),
            undecided=undecided,
            grace_seconds=grace_of(sample).seconds,
            sharing=sharing,
            notes=notes,
        )
        return observation, facts

    def _request_time(self, sample: Sample) -> RequestTime:
        """Where request time went in the verdict's window."""
        lives = lives_of(sample, self.summaries.records())
        since_ns = sample.now_ns - round(self._bench.window_seconds * NS_PER_SECOND)
        return request_time(lives, since_ns=since_ns, now_ns=sample.now_ns)

    def _audit(
        self, sample: Sample, final: bool, sharing: SharingView | None
    ) -> tuple[AuditFacts, tuple[Finding, ...], tuple[Note, ...]]:
        # Limits of pins and ended requests run in the time that counts: a stopped engine makes none of them overdue.
        now_ns = sample.now_ns if sample.status_then is ReadStatus.IDLE else sample.clock_ns
        audit = self.reader.audit(now_ns)
        facts, grace = facts_of(audit), grace_of(sample)
        quiet = audit.quiescent and audit.published_seq == sample.published_seq
        self._violations.update(counts(sample, audit), quiet=quiet, clock=self._clock, grace=grace, final=final)
        self._judge(audit, sample, grace, final)
        limits, registry = self.reader.head.limits, Registry(audit.slots, self.summaries.records(), sample.tenants)
        active = sample.stats.gauge("active_blocks")
        findings = self._book.assemble(
            self._leaks.open,
            clock=clock_of(sample),
            traces=Traces(events=self.events.records(), registry=registry, pins=sample.pins, now_ns=now_ns),
            available_blocks=None if active is None else max(0, limits.capacity_blocks - int(active)),
        )
        return facts, findings, notes_of(Sources(facts, limits.capacity_blocks, sharing), registry)

    def _judge(self, audit: Audit, sample: Sample, grace: Grace, final: bool) -> None:
        found = suspects(audit, limit=MOST_SUSPECTS)
        blocks = [suspect.block for suspect in found if suspect.block >= 0]
        known = self._leaks.blocks
        self._book.note(
            histories(audit, self._book.lacks(blocks)), relevant={*blocks, *known, *self._leaks.open_blocks}
        )
        stamps = dict(zip(known, audit.values("changed_seq", np.array(known, np.int32)).tolist(), strict=True))
        self._leaks.update(
            found,
            judged=lambda block: stamps[block] <= audit.published_seq,
            published_seq=audit.published_seq,
            clock_ns=sample.clock_ns,
            clock=self._clock,
            grace=grace,
            confirmed=self._second_look(found, audit.now_ns),
            final=Final(audit.published_seq, is_cut_short(sample, audit)) if final else None,
        )

    def _second_look(self, found: list[Suspect], now_ns: int) -> frozenset[Key]:
        """What another audit suspects, too. It overwrites what the first one borrowed."""
        if not self._leaks.wants_second_look(found):
            return frozenset()
        return frozenset(map(key_of, suspects(self.reader.audit(now_ns), limit=MOST_SUSPECTS)))


def _insight(sample: Sample, facts: AuditFacts, observation: Observation) -> Insight:
    """What the verdict wants to know of a ledger beside its observation."""
    limits, pool = sample.head.limits, observation.pool
    active = None if pool is None else pool.active_blocks
    return Insight(
        max_num_seqs=limits.max_num_seqs or None,
        max_num_batched_tokens=limits.max_num_batched_tokens or None,
        holders=None if active is None else holders_of(sample, facts, active),
        head=None if active is None else queue_head(sample, limits.capacity_blocks - active),
    )
