"""Pins: references that vLLM holds outside the tables of live requests. Owns `pin.*`.

Frees that vLLM defers, and the two ends of a copy, are known entry by entry. What a connector holds it does not say.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.layout import CONTROL_INDEX
from kvledger.words import PinKind
from kvledger.writer import Ledger
from kvledger_vllm.notes import Notes
from kvledger_vllm.tables import ledger_blocks

Ids = NDArray[np.intp]
_FREE_PINS = CONTROL_INDEX["free_pin_count"]


class Pins:
    """The pins of one scheduler. `deferred` is its queue of frees that wait for a step's end, None if it has none."""

    def __init__(self, ledger: Ledger, pool: Any, deferred: Any) -> None:
        self._ledger, self._pins, self._control = ledger, ledger.pins, ledger.control
        self._pool, self._deferred = pool, deferred
        self._entries: dict[int, tuple[Any, list[int]]] = {}
        """id of an entry of the queue -> the entry, which keeps that id its own, and its pins."""

    def sync(self, notes: Notes, serial_of: dict[str, int]) -> None:
        """Make the pins those of the deferred frees as they are now. `serial_of` names who held a popped list."""
        if not self._deferred and not self._entries:
            return
        present = {id(entry): entry for entry in self._deferred or ()}
        for key in [key for key in self._entries if key not in present]:
            self._drop(self._entries.pop(key)[1])
        holders = {id(blocks): serial_of.get(request_id, 0) for blocks, request_id in notes.popped}
        copied = {id(entry) for entry in notes.copied}
        for key, entry in present.items():
            if key not in self._entries:
                kind = PinKind.COPY_ON_WRITE if key in copied else PinKind.DEFERRED_FREE
                blocks = np.array(ledger_blocks(entry[1], self._pool), np.intp)
                self._entries[key] = (entry, self._add(blocks, kind, holders.get(id(entry[1]), 0)))

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
