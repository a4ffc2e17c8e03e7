"""The reader of one ledger: samples, audits and ring windows of a file that its writer never stops changing.

Owns the order of looks and the bounds on repeating them. Never writes, never maps, never blocks the writer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger import ring
from kvledger.audit import Audit, AuditMemory
from kvledger.buffers import Buffers, Sections
from kvledger.errors import Busy, LedgerUnreadable
from kvledger.head import Head, read_head
from kvledger.pins import read_pins
from kvledger.recording import check_body
from kvledger.ring import RingWindow
from kvledger.rows import SlotReader
from kvledger.segment import boot_id
from kvledger.snapshot import Sample
from kvledger.source import FileSource, Source
from kvledger.statsview import StatsView
from kvledger.status import ReadStatus, frozen_after_seconds, status_of, status_of_error

LOOKS = 200
PEAK_LOOKS = 4


class Reader:
    """One ledger, held open. Used by one thread at a time; readers of one thread may share `buffers`.

    `retries` counts looks that had to be repeated because the writer was active.
    """

    def __init__(self, source: Source, head: Head, buffers: Buffers | None = None) -> None:
        self.head = head
        self.retries = 0
        self._source = source
        self._sections = Sections(source, head, buffers or Buffers())
        self._slots, self._memory = SlotReader(self._sections), AuditMemory(head)
        self._same_boot = head.boot_id == boot_id()
        self._last: Sample | None = None

    @classmethod
    def open(cls, path: Path, buffers: Buffers | None = None) -> Reader:
        """Open a file. Raises a `LedgerUnreadable` subclass that names it, or `FileNotFoundError`."""
        try:
            return cls.over(FileSource(path), buffers)
        except LedgerUnreadable as error:
            if str(path) in str(error):
                raise
            raise type(error)(f"{path}: {error}") from error

    @classmethod
    def over(cls, source: Source, buffers: Buffers | None = None) -> Reader:
        """Read from any source, which the reader then owns. Raises a `LedgerUnreadable` subclass."""
        try:
            head = read_head(source)
            if head.recording is not None:
                check_body(source, head.file_bytes, head.recording)
            return cls(source, head, buffers)
        except BaseException:
            source.close()
            raise

    def close(self) -> None:
        """Close the source. Idempotent."""
        self._source.close()

    @property
    def source(self) -> Source:
        """Where the bytes come from; the reader's own."""
        return self._source

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the cheap look -------------------------------------------------------------------------------------------

    def sample(self, now_ns: int | None = None) -> Sample:
        """Stats, live requests, pins and tenants; `now_ns` is CLOCK_MONOTONIC unless given, and unused for a recording.

        When the writer moves on during every one of the bounded looks, the last sample is returned with status
        LAST_GOOD. Raises `Truncated`, or `Busy` when there is no last sample.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        values = self._stats()
        if values is None:
            if self._last is None:
                raise Busy(f"no complete publication in {LOOKS} looks: sample again")
            return replace(self._last, status=ReadStatus.LAST_GOOD)
        self._last = self._sample(values, now_ns)
        return self._last

    def _sample(self, values: NDArray[np.float64], now_ns: int) -> Sample:
        control, pid, recording = self._control(), self._source.writer_pid(), self.head.recording
        tenants, quotas = self._tenants(control)
        stats = StatsView(self.head.stats, values, tenants)
        age = recording.heartbeat_age_seconds if recording else self._heartbeat_age_seconds(stats, now_ns)
        if not self._clock_runs(control, pid):
            now_ns = recording.now_ns if recording else stats.whole("clock_ns")
        slots, left_out, repeated = self._slots.read(lambda: self._control()["published_seq"])
        self.retries += repeated
        return Sample(
            head=self.head,
            status=ReadStatus.RECORDED if recording else self._status(control, stats, pid, age),
            control=control,
            stats=stats,
            slots=slots,
            pins=read_pins(self._sections),
            tenants=tenants,
            tenant_quota_blocks=quotas,
            clock_ns=stats.whole("clock_ns"),
            now_ns=now_ns,
            heartbeat_age_seconds=age,
            writer_pid=pid,
            published_seq=stats.whole("seq"),
            left_out=left_out,
            instrument_failure=self._instrument_failure(control),
        )

    def _stats(self) -> NDArray[np.float64] | None:
        """The stats vector of one complete publication, None after `LOOKS` looks.

        The writer fills buffer (k + 1) & 1 while `stats_index` is k, then stores k + 1. A copy of buffer k & 1 is of
        one publication if the writer had not begun to fill that buffer again when the copy was over. It fills it again
        for index k + 2, so index k still standing afterwards is enough. If the index has moved by one, the number of
        the publication decides: P was published before k was read, so index k belongs to a publication >= P and index
        k + 2 to one >= P + 2, which stores its number into `writing_seq` before anything else; a `writing_seq` of at
        most P + 1 after the copy says that it had not begun.
        """
        size = self.head.stats.size
        for _ in range(LOOKS):
            published = self._control()["published_seq"]
            index = self._control()["stats_index"]
            values = self._sections.read("stats", 1, start=index & 1)[0]
            after = self._control()
            if after["stats_index"] == index or after["writing_seq"] <= published + 1:
                assert len(values) == size
                copy: NDArray[np.float64] = values.copy()
                return copy
            self.retries += 1
        return None

    def _instrument_failure(self, control: Mapping[str, int]) -> str | None:
        if not control["instrument_failed"]:
            return None
        return bytes(self._sections.read("instrument.failure")[0]).decode(errors="replace") or "no reason was stored"

    def _control(self) -> dict[str, int]:
        return self._sections.control()

    def _tenants(self, control: Mapping[str, int]) -> tuple[tuple[str, ...], dict[str, int]]:
        named = min(max(control["tenant_count"], 0), self.head.limits.max_tenants)
        names = self._sections.read("tenant.name").tolist()
        quotas = self._sections.read("tenant.quota_blocks").tolist()
        tenants = tuple(bytes(names[column]).decode(errors="replace") for column in (*range(named), -1))
        return tenants, {name: quotas[column] for column, name in enumerate(tenants[:-1]) if quotas[column] > 0}

    # -- life -----------------------------------------------------------------------------------------------------

    def _heartbeat_age_seconds(self, stats: StatsView, now_ns: int) -> float | None:
        beat = stats.whole("monotonic_ns")
        if self.head.virtual_clock or not self._same_boot or beat <= 0:
            return None
        return max(0.0, (now_ns - beat) / 1e9)

    def _clock_runs(self, control: Mapping[str, int], pid: int | None) -> bool:
        gone = self.head.recording is not None or pid is None or control["closed"] or control["abandoned"]
        return not gone and self._same_boot and not self.head.virtual_clock

    @staticmethod
    def _status(control: Mapping[str, int], stats: StatsView, pid: int | None, age: float | None) -> ReadStatus:
        return status_of(
            abandoned=bool(control["abandoned"]),
            closed=bool(control["closed"]),
            locked=pid is not None,
            idle=control["idle_since_ns"] != 0,
            heartbeat_age_seconds=age,
            frozen_after_seconds=frozen_after_seconds(stats),
        )

    # -- the thorough look ----------------------------------------------------------------------------------------

    def audit(self, now_ns: int | None = None) -> Audit:
        """Every block, table, list and pin; what was being changed meanwhile is not `stable`. Raises `Truncated`.

        `now_ns` is the ledger clock, by default the one a sample would give.
        """
        published = self._control()
        if now_ns is None:
            now_ns = self._now_ns()
        # The words are read after `published_seq`: a count older than it could miss a block that is stable since.
        control = self._control() | {name: published[name] for name in ("published_seq", "writing_seq")}
        return Audit(self._sections, control, memory=self._memory, now_ns=now_ns)

    def _now_ns(self) -> int:
        if self.head.recording is not None:
            return self.head.recording.now_ns
        if self._clock_runs(self._control(), self._source.writer_pid()):
            return time.monotonic_ns()
        values = self._stats()
        return 0 if values is None else StatsView(self.head.stats, values, ("other",)).whole("clock_ns")

    # -- rings ----------------------------------------------------------------------------------------------------

    def events(self, since: int) -> RingWindow:
        """Lifecycle events (dtype `layout.EVENT`) from number `since` on, and how many were overwritten unread."""
        return self._window("events", since)

    def summaries(self, since: int) -> RingWindow:
        """Summaries of ended requests (dtype `layout.SUMMARY`) from number `since` on."""
        return self._window("summaries", since)

    def _window(self, name: str, since: int) -> RingWindow:
        section, head = f"ring.{name}", max(self._control()[f"{name}_head"], 0)
        size = self.head.sections[section].shape[0]
        fresh = min(head - since if 0 <= since <= head else head, size)
        first = (head - fresh) % size
        copy = self._sections.refresh(section, first, min(first + fresh, size))
        copy = self._sections.refresh(section, 0, max(first + fresh - size, 0))
        reserved = self._control()[f"{name}_reserved"]
        return ring.trusted(copy, since=since, head_before=head, reserved_after=reserved)

    def prefix_accounts(self) -> NDArray[Any]:
        """Cost and use of sharing by prefix (dtype `layout.PREFIX_ACCOUNT`), as a copy; the last row is all others.

        Rows may be of two publications: each number is whole, their sums are exact once the writer rests.
        """
        accounts: NDArray[Any] = self._sections.read("prefix.accounts").copy()
        return accounts

    def peaks(self) -> NDArray[Any]:
        """Per-second peaks (dtype `layout.PEAK`), oldest first; a second being written at every look is left out."""
        copy = self._sections.read("ring.peaks").copy()
        for _ in range(PEAK_LOOKS):
            again = self._sections.read("ring.peaks")
            same = copy == again
            if same.all():
                break
            self.retries += 1
            copy = again.copy()
        peaks: NDArray[Any] = copy[same & (copy["second"] > 0)]
        return peaks[np.argsort(peaks["second"], kind="stable")]


def probe(path: Path) -> ReadStatus:
    """The status of whatever lies at `path`. Never raises."""
    try:
        with Reader.open(path) as reader:
            return reader.sample().status
    except (LedgerUnreadable, OSError) as error:
        return status_of_error(error)
