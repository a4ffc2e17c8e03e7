"""The lives of requests as columns: those that have ended, from their summaries, and those that have not. Pure.

One shape for both, so that whatever adds up request time forgets nobody: who still waits counts with the wait so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.snapshot import Sample
from kvledger.views import F64, I16, I64, U8
from kvledger.words import RequestState, WaitCause

_CAUSES = len(WaitCause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """One row per request, times in ns of the ledger clock, 0 = not yet.

    `ended_ns` is the end, or now; `gone_ns` when the last block was given back, or now. `wait_seconds` has shape
    (rows, causes), the open wait included; `tenant` and `request_class` are the ledger's numbers.
    """

    arrived_ns: I64
    first_block_ns: I64
    first_token_ns: I64
    ended_ns: I64
    gone_ns: I64
    wait_seconds: F64
    tenant: I16
    request_class: U8
    live: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.arrived_ns)

    def where(self, mask: NDArray[np.bool_]) -> Lives:
        """The rows of a mask."""
        return Lives(**{name: getattr(self, name)[mask] for name in self.__slots__})


def lives_of(sample: Sample, summaries: NDArray[Any] | None) -> Lives:
    """Every request of a sample and of the summaries; one that has ended since the sample counts once, as ended."""
    ended = _ended(summaries)
    live = _live(sample)
    if summaries is not None and len(summaries):
        live = live.where(~np.isin(sample.slots.serial, summaries["serial"]))
    return Lives(**{name: np.concatenate((getattr(ended, name), getattr(live, name))) for name in Lives.__slots__})


def _ended(summaries: NDArray[Any] | None) -> Lives:
    if summaries is None:
        return _nobody()
    return Lives(
        arrived_ns=summaries["arrived_ns"],
        first_block_ns=summaries["first_block_ns"],
        first_token_ns=summaries["first_token_ns"],
        ended_ns=summaries["finished_ns"],
        gone_ns=np.maximum(summaries["released_ns"], summaries["finished_ns"]),
        wait_seconds=_sound(summaries["wait_seconds"]),
        tenant=summaries["tenant"],
        request_class=summaries["request_class"],
        live=np.zeros(len(summaries), np.bool_),
    )


def _live(sample: Sample) -> Lives:
    slots = sample.slots
    now = np.full(len(slots), sample.now_ns, np.int64)
    finishing = (slots.state == RequestState.FINISHING) & (slots.finishing_ns > 0)
    return Lives(
        arrived_ns=slots.arrived_ns,
        first_block_ns=slots.first_block_ns,
        first_token_ns=slots.first_token_ns,
        ended_ns=np.where(finishing, slots.finishing_ns, now),
        gone_ns=now,
        wait_seconds=_sound(sample.wait_seconds()),
        tenant=slots.tenant,
        request_class=slots.request_class,
        live=np.ones(len(slots), np.bool_),
    )


def _nobody() -> Lives:
    none = np.zeros(0, np.int64)
    return Lives(
        arrived_ns=none,
        first_block_ns=none,
        first_token_ns=none,
        ended_ns=none,
        gone_ns=none,
        wait_seconds=np.zeros((0, _CAUSES)),
        tenant=np.zeros(0, np.int16),
        request_class=np.zeros(0, np.uint8),
        live=np.zeros(0, np.bool_),
    )


def _sound(waits: NDArray[np.float64]) -> F64:
    """Waits without what a damaged ledger may hold: no number, or one below zero."""
    sound: F64 = np.maximum(np.nan_to_num(waits.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0), 0.0)
    return sound
