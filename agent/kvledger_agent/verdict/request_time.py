"""Where the time of requests went: waits by cause, prefill, decode, other; in a window, summing to all of it. Pure.

A request's life is cut at its first block, its first token and its end. Before the first block it waits; what it waits
later, preempted, is taken out of the part that it interrupted. A life that lies in the window in part counts with that
part, its waits spread evenly over the piece they belong to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvledger.clock import NS_PER_SECOND
from kvledger.views import F64, I64
from kvledger.words import WaitCause
from kvledger_agent.lives import Lives

WAITS = tuple(f"wait_{word}" for word in WaitCause.words())
PARTS = (*WAITS, "prefill", "decode", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTime:
    """Seconds of all requests together by part (`PARTS`), within the last `window_seconds`; `requests` were there."""

    seconds: Mapping[str, float]
    window_seconds: float
    requests: int

    @property
    def total_seconds(self) -> float:
        """All request time of the window."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> Mapping[str, float]:
        """Each part over their sum, so that they sum to 1; empty when nobody was there."""
        total = self.total_seconds
        return {part: seconds / total for part, seconds in self.seconds.items()} if total > 0 else {}


def request_time(lives: Lives, *, since_ns: int, now_ns: int) -> RequestTime:
    """The request time between two instants of the ledger clock."""
    there = (lives.gone_ns > since_ns) & (lives.arrived_ns < now_ns)
    seconds = parts_of(lives.where(there), since_ns=since_ns, now_ns=now_ns).sum(axis=0)
    return RequestTime(
        seconds=dict(zip(PARTS, seconds.tolist(), strict=True)),
        window_seconds=max(0.0, (now_ns - since_ns) / NS_PER_SECOND),
        requests=int(there.sum()),
    )


def parts_of(lives: Lives, *, since_ns: int, now_ns: int) -> F64:
    """Seconds of each request in each part, shape (rows, parts), as far as they lie between the two instants.

    A row sums to the time the request was there: nothing is counted twice, and what is not known to be another part is
    `other`: an ended request that still holds blocks, and time that no clock accounts for.
    """
    began, block, token, ended, gone = _cuts(lives, now_ns)
    first, later = _within(began, block, since_ns, now_ns), _within(block, ended, since_ns, now_ns)
    waits, waited = lives.wait_seconds, lives.wait_seconds.sum(axis=1)
    before = np.minimum(_seconds(began, block), waited)
    after = np.minimum(_seconds(block, ended), waited - before)
    waited_first = before * _ratio(first, _seconds(began, block))
    waited_later = after * _ratio(later, _seconds(block, ended))
    counted = waited_first + waited_later
    prefill, decode = _within(block, token, since_ns, now_ns), _within(token, ended, since_ns, now_ns)
    of_decode = np.minimum(waited_later, decode)
    parts = np.zeros((len(lives), len(PARTS)))
    parts[:, : len(WAITS)] = waits * _ratio(counted, waited)[:, None]
    parts[:, -3] = np.maximum(prefill - (waited_later - of_decode), 0.0)
    parts[:, -2] = decode - of_decode
    parts[:, -1] = np.maximum(first - waited_first, 0.0) + _within(ended, gone, since_ns, now_ns)
    return parts


def _cuts(lives: Lives, now_ns: int) -> tuple[I64, I64, I64, I64, I64]:
    """Arrival, first block, first token, end, and the last block given back: never one before the one before it."""
    began = np.minimum(lives.arrived_ns, now_ns)
    ended = np.clip(lives.ended_ns, began, now_ns)
    block = np.where(lives.first_block_ns > 0, np.clip(lives.first_block_ns, began, ended), ended)
    token = np.where(lives.first_token_ns > 0, np.clip(lives.first_token_ns, block, ended), ended)
    gone = np.clip(lives.gone_ns, ended, now_ns)
    return began, block, token, ended, gone


def _within(start: I64, end: I64, since_ns: int, now_ns: int) -> F64:
    """Seconds of [start, end) that lie in the window."""
    seconds: F64 = np.maximum(np.minimum(end, now_ns) - np.maximum(start, since_ns), 0) / NS_PER_SECOND
    return seconds


def _seconds(start: I64, end: I64) -> F64:
    return (end - start) / NS_PER_SECOND


def _ratio(part: F64, whole: F64) -> F64:
    ratio: F64 = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return ratio
