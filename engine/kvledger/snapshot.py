"""What one look at a ledger yields, as values: the sample, its live requests and pins. Copies; no file behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.head import Head
from kvledger.pins import PinTable
from kvledger.statsview import StatsView
from kvledger.status import ReadStatus
from kvledger.views import F64, I32, SlotColumns
from kvledger.words import RequestState, WaitCause

NOT_LOOKED_AT = 255
OWN_CAUSE = 1
"""`slot.queue` of a request that waits by itself is this plus the number of its cause."""
_WAITING = (int(RequestState.WAITING), int(RequestState.PREEMPTED), int(RequestState.SWAPPED))


@dataclass(slots=True)
class SlotTable(SlotColumns):
    """Live requests (serial != 0), ascending by slot: the columns of `views.Slots`, one row per request.

    `slot` is the row's slot. `settled` is False where the row was being changed: in a sample that row is the last
    good one of the same request; in an audit it is as found and may mix two publications.
    """

    slot: I32
    settled: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.slot)

    @property
    def waiting(self) -> NDArray[np.bool_]:
        """Rows that wait for admission: waiting, preempted or swapped."""
        return np.isin(self.state, _WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One cheap, consistent look: stats of one publication, live requests, pins and tenants. Owns its arrays.

    `clock_ns` is the ledger clock at the publication of `stats`; `now_ns` the ledger clock now, which stands at
    `clock_ns` for a virtual clock and for an engine that is gone, and where it was for a recording.
    `heartbeat_age_seconds` is None where the two clocks cannot be compared. `left_out` counts
    requests that were being changed and have no earlier good row. `instrument_failure` says why whoever mirrors an
    engine into the ledger has switched itself off, None while nobody has.
    """

    head: Head
    status: ReadStatus
    control: Mapping[str, int]
    stats: StatsView
    slots: SlotTable
    pins: PinTable
    tenants: tuple[str, ...]
    tenant_quota_blocks: Mapping[str, int]
    clock_ns: int
    now_ns: int
    heartbeat_age_seconds: float | None
    writer_pid: int | None
    published_seq: int
    left_out: int
    instrument_failure: str | None = None

    @property
    def status_then(self) -> ReadStatus:
        """The state of the engine at the moment of the look; of a recording, the one it had when it was recorded."""
        recording = self.head.recording
        if recording is None:
            return self.status
        known = recording.status in ReadStatus.__members__.values()
        return ReadStatus(recording.status) if known else ReadStatus.LAST_GOOD

    def wait_causes(self) -> NDArray[np.int8]:
        """The one cause each live request waits for (`words.WaitCause`), -1 where it does not wait."""
        causes = np.full(len(self.slots), -1, np.int8)
        waiting = self.slots.waiting
        causes[waiting] = self._queue_cause()
        alone = waiting & self._alone()
        causes[alone] = self.slots.queue[alone] - OWN_CAUSE
        causes[waiting & (self.slots.queue == NOT_LOOKED_AT)] = int(WaitCause.STEP)
        return causes

    def wait_seconds(self) -> F64:
        """Seconds each live request has waited by cause, the wait still open included, shape (rows, causes)."""
        with np.errstate(all="ignore"):  # a damaged ledger may hold anything
            return self._wait_seconds()

    def _wait_seconds(self) -> F64:
        waits = self.slots.wait_seconds.astype(np.float64)
        alone = self.slots.waiting & self._alone()
        queued = self.slots.waiting & (self.slots.queue != NOT_LOOKED_AT) & ~alone
        clock = self.stats.wait_clock.copy()
        clock[self._queue_cause()] += max(0.0, (self.now_ns - self.stats.whole("queue_since_ns")) / 1e9)
        waits[queued] += np.maximum(clock - self.slots.wait_base[queued], 0.0)
        own = self.slots.queue[alone].astype(np.intp) - OWN_CAUSE
        waits[alone, own] += np.maximum(np.float64(self.now_ns) / 1e9 - self.slots.wait_base[alone, own], 0.0)
        fresh = self.slots.waiting & ~queued & ~alone
        since = np.float64(self.now_ns) - self.slots.queued_ns[fresh].astype(np.float64)
        waits[fresh, int(WaitCause.STEP)] += np.maximum(since / 1e9, 0.0)
        return waits

    def _alone(self) -> NDArray[np.bool_]:
        """Rows whose number of a queue says that they wait for a cause of their own."""
        own: NDArray[np.bool_] = (self.slots.queue >= OWN_CAUSE) & (self.slots.queue < OWN_CAUSE + len(WaitCause))
        return own

    def _queue_cause(self) -> int:
        cause = self.stats.whole("queue_cause")
        return cause if 0 <= cause < len(WaitCause) else int(WaitCause.STEP)
