"""The most requests that ran at once, from the ledger's events: no burst hides between two looks. Reads nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.clock import NS_PER_SECOND
from kvledger.snapshot import Sample
from kvledger.words import Event, RequestState

SPAN_SECONDS = 60
_BEGINS = (int(Event.ADMITTED), int(Event.FORKED))
_ENDS = (int(Event.PREEMPTED), int(Event.FINISHED))


class PeakRunning:
    """Follows who runs, event by event, and sets itself right at every sample.

    Events that were overwritten unread, or that lie before the first look, can only make a peak too low.
    """

    __slots__ = ("_peaks", "_running")

    def __init__(self) -> None:
        self._running: set[int] = set()
        self._peaks: dict[int, int] = {}

    def update(self, events: NDArray[Any] | None, sample: Sample) -> int:
        """Take in the events since the last look. Returns the peak of the last 60 s of the ledger clock."""
        first_ns = sample.now_ns - SPAN_SECONDS * NS_PER_SECOND
        if events is not None:
            seen = events["seq"] <= sample.published_seq
            self._follow(events[seen], first_ns, sample.now_ns)
        self._running = set(sample.slots.serial[sample.slots.state == RequestState.RUNNING].tolist())
        self._note(sample.now_ns)
        if events is not None:
            self._follow(events[~seen], first_ns, sample.now_ns)
        first = first_ns // NS_PER_SECOND
        self._peaks = {second: peak for second, peak in self._peaks.items() if second > first}
        return max(self._peaks.values(), default=0)

    def _follow(self, events: NDArray[Any], first_ns: int, now_ns: int) -> None:
        changes = events[np.isin(events["event"], (*_BEGINS, *_ENDS))]
        columns = (changes["serial"].tolist(), changes["event"].tolist(), changes["time_ns"].tolist())
        for serial, event, time_ns in zip(*columns, strict=True):
            if event in _BEGINS:
                self._running.add(serial)
            else:
                self._running.discard(serial)
            if time_ns > first_ns:
                # Later than the sample is what came between it and the events; a damaged ledger may say any time.
                self._note(min(time_ns, now_ns))

    def _note(self, time_ns: int) -> None:
        second = time_ns // NS_PER_SECOND
        self._peaks[second] = max(self._peaks.get(second, 0), len(self._running))
