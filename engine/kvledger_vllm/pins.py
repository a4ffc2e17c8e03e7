"""Pins: references that vLLM holds outside the tables of live requests. Owns `pin.*`.

Frees that vLLM defers, and the two ends of a copy, are known entry by entry; what a KV connector holds, block by block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.words import PinKind
from kvledger.writer import Ledger

Ids = NDArray[np.intp]
_FREE_PINS = CONTROL_INDEX["free_pin_count"]


class Pins:
    """The pins of one scheduler: those of its frees that wait for a step's end, and its connector's."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._pins, self._control = ledger, ledger.pins, ledger.control
        self._entries: dict[int, list[int]] = {}
        """Key of a deferred free -> its pins."""
        self._connector: dict[int, list[int]] = defaultdict(list)
        """Block -> the connector's pins of it."""

    def sync(self, rare: Mapping[str, Any], serial_of: Callable[[str], int]) -> None:
        """Drop and add what a message tells of. `serial_of` a request id is who held its blocks."""
        for key in rare.get("gone", ()):
            self._drop(self._entries.pop(key))
        for key, copied, holder, blocks in rare.get("deferred_frees", ()):
            kind = PinKind.COPY_ON_WRITE if copied else PinKind.DEFERRED_FREE
            self._entries[key] = self._add(np.array(blocks, np.intp), kind, serial_of(holder))
        pinned = rare.get("pinned", ())
        for block, change in zip(pinned[::2], pinned[1::2], strict=True):
            mine = self._connector[block]
            if change > 0:
                mine += self._add(np.full(change, block, np.intp), PinKind.CONNECTOR, 0)
            else:
                # It may give back what it had before it was watched.
                self._drop(mine[change:])
                del mine[change:]
            if not mine:
                del self._connector[block]

    def _add(self, blocks: Ids, kind: PinKind, holder: int) -> list[int]:
        free, pins = int(self._control[_FREE_PINS]), self._pins
        room = min(free, len(blocks))
        if room < len(blocks):
            self._ledger.overflow(len(blocks) - room)
        taken = pins.free_pins[free - room : free][::-1].astype(np.intp)
        self._ledger.stamp(blocks)
        pins.kind[taken], pins.lease_ns[taken], pins.holder[taken] = kind, 0, holder
        pins.since_ns[taken] = self._ledger.now_ns
        pins.block[taken] = blocks[:room]
        self._control[_FREE_PINS] = free - room
        entries: list[int] = taken.tolist()
        return entries

    def _drop(self, entries: list[int]) -> None:
        held = np.array(entries, np.intp)
        if not len(held):
            return
        self._ledger.stamp(self._pins.block[held])
        self._pins.block[held] = -1
        self._pins.kind[held] = PinKind.NONE
        free = int(self._control[_FREE_PINS])
        self._pins.free_pins[free : free + len(held)] = held[::-1]
        self._control[_FREE_PINS] = free + len(held)
