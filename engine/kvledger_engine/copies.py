"""Copy-on-write: which shared blocks are about to be written, and the copies that must be made first.

Owns the pending copies of the present step and the pins that keep their sources; never copies a byte itself.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.words import PinKind
from kvledger.writer import Ledger
from kvledger_engine.pins import PinTable
from kvledger_engine.prefixkeys import U64, Integers

COPY_LEASE_NS = 60_000_000_000
"""A copy belongs to one step; a source pinned for a minute was forgotten."""


def must_copy(sources: Integers, references: Integers) -> I32:
    """Positions in `sources` (blocks about to be written, in turn) of those that somebody else still holds by then.

    Each request that copies gives its reference to the source up, so the last holder of a block writes into it.
    """
    earlier = np.tril(sources[:, None] == sources[None, :], -1).sum(axis=1)
    return np.flatnonzero(references - earlier >= 2).astype(np.int32)


class PendingCopies:
    """Block copies that the compute has to make before it writes."""

    def __init__(self, ledger: Ledger, pins: PinTable) -> None:
        self._pins = pins
        stats = ledger.stats
        self._values = stats.values
        self._copies, self._bytes = stats.counter("cow_copies_total"), stats.counter("cow_bytes_total")
        self._block_bytes = ledger.limits.groups[0].block_bytes
        self._clear()

    def _clear(self) -> None:
        self._sources = self._targets = self._entries = np.empty(0, np.int32)

    def add(self, sources: Integers, targets: Integers, holders: U64) -> None:
        """Copy each source to its target, on behalf of the request with that serial."""
        entries = self._pins.add(sources, PinKind.COPY_ON_WRITE, holders, lease_ns=COPY_LEASE_NS)
        self._sources = np.concatenate((self._sources, sources.astype(np.int32)))
        self._targets = np.concatenate((self._targets, targets.astype(np.int32)))
        self._entries = np.concatenate((self._entries, entries))
        self._values[self._copies] += len(sources)
        self._values[self._bytes] += len(sources) * self._block_bytes

    def forget(self, targets: Integers) -> None:
        """The blocks are given back before anything was copied into them."""
        if len(self._targets) == 0:
            return
        gone = np.isin(self._targets, targets)
        self._pins.drop(self._entries[gone])
        self._sources, self._targets = self._sources[~gone], self._targets[~gone]
        self._entries = self._entries[~gone]

    def pending(self) -> tuple[I32, I32]:
        """(sources, targets) of the copies to make now."""
        return self._sources, self._targets

    def done(self) -> None:
        """The copies have been made: their sources are no longer needed for it."""
        entries = self._entries
        self._clear()
        if len(entries):
            self._pins.drop(entries)
