"""Pins: references held by something declared that is no live table. Owns `pin.*`; the pool counts the references."""

from __future__ import annotations

import numpy as np

from kvledger.layout import CONTROL_INDEX
from kvledger.views import I32, U64
from kvledger.words import PinKind
from kvledger.writer import Ledger
from kvledger_engine.ids import Integers
from kvledger_engine.pool import BlockPool

_FREE_PINS = CONTROL_INDEX["free_pin_count"]
UNPINNED = -1
"""Entry of a block for which the table had no room."""


class PinTable:
    """The pins of one ledger."""

    def __init__(self, ledger: Ledger, pool: BlockPool) -> None:
        self._ledger, self._pool, self._pins, self._control = ledger, pool, ledger.pins, ledger.control

    def add(self, blocks: Integers, kind: PinKind, holders: U64 | int, *, lease_ns: int) -> I32:
        """Take one reference to each block for `holders`: serials or ids, one for all or one per block.

        Returns the entries, `UNPINNED` where the table was full: counted as overflows, and no reference was taken.
        """
        free = int(self._control[_FREE_PINS])
        room = min(free, len(blocks))
        entries = np.full(len(blocks), UNPINNED, np.int32)
        if room < len(blocks):
            self._ledger.overflow(len(blocks) - room)
        taken = self._pins.free_pins[free - room : free][::-1]
        entries[:room] = taken
        pinned = entries[:room].astype(np.intp)
        self._pool.share(blocks[:room])
        self._pins.kind[pinned], self._pins.lease_ns[pinned] = kind, lease_ns
        self._pins.holder[pinned] = np.broadcast_to(np.asarray(holders, np.uint64), len(blocks))[:room]
        self._pins.since_ns[pinned] = self._ledger.now_ns
        self._pins.block[pinned] = blocks[:room]
        self._control[_FREE_PINS] = free - room
        return entries

    def drop(self, entries: Integers) -> None:
        """Give the references of these entries back, in order; `UNPINNED` ones are passed over."""
        held = entries[entries != UNPINNED].astype(np.intp)
        blocks = self._pins.block[held]
        assert (blocks >= 0).all(), "a pin was dropped twice"
        self._ledger.stamp(blocks)
        self._pins.block[held] = -1
        self._pins.kind[held] = PinKind.NONE
        free = int(self._control[_FREE_PINS])
        self._pins.free_pins[free : free + len(held)] = held[::-1]
        self._control[_FREE_PINS] = free + len(held)
        self._pool.release(blocks)
