"""Pins as a reader sees them: references to blocks held by something declared that is not a live table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.views import I32, I64, U8, U64
from kvledger.words import PinKind


@dataclass(frozen=True, slots=True)
class PinTable:
    """Pins in use, one row each; `entry` is the row's index in the ledger's pin table."""

    entry: I32
    block: I32
    kind: U8
    holder: U64
    since_ns: I64
    lease_ns: I64

    def __len__(self) -> int:
        return len(self.entry)

    def overdue(self, now_ns: int) -> NDArray[np.bool_]:
        """Rows whose lease has run out. A lease of 0 has no end."""
        # Ages, not deadlines: since + lease of a damaged file may not fit 64 bits.
        age = np.float64(now_ns) - self.since_ns.astype(np.float64)
        return (self.lease_ns > 0) & (age > self.lease_ns.astype(np.float64))


def pin_word(kind: int) -> str:
    """The word of a pin's stored kind; `kind_N` for one that a newer writer knows."""
    return PinKind(kind).word if kind < len(PinKind) else f"kind_{kind}"


def read_pins(sections: Sections) -> PinTable:
    """The pins in use that name a block of the pool. A pin made or taken back meanwhile is left out."""
    capacity = sections.head.sections["block.state"].shape[0]
    named = sections.read("pin.block")
    entry = np.flatnonzero((named >= 0) & (named < capacity))
    used = int(entry[-1]) + 1 if len(entry) else 0
    block, since = named[entry], sections.read("pin.since_ns", used)[entry]
    kind, holder, lease = (sections.read(f"pin.{name}", used)[entry] for name in ("kind", "holder", "lease_ns"))
    same = (sections.read("pin.block", used)[entry] == block) & (sections.read("pin.since_ns", used)[entry] == since)
    return PinTable(entry.astype(np.int32)[same], *(column[same] for column in (block, kind, holder, since, lease)))
