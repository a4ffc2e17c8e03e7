"""The live request slots of a ledger, read row by row under their stamps. Never calls a half-changed row settled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from kvledger.buffers import Sections
from kvledger.snapshot import SlotTable
from kvledger.views import SlotColumns, section_names

LOOKS = 3
_SECTIONS = section_names(SlotColumns)


def look(sections: Sections, published: int) -> SlotTable:
    """One look at the live slots. `published` must have been read from the ledger before.

    A row is settled if its stamp, read after everything else, is at most `published`: the writer stamps a slot before
    it changes it and stamps only rise, so no publication after `published` had touched the row, and those up to it were
    complete before the look began. (Token counts and times of tokens change without a stamp; each is a single word.)
    """
    serial = sections.read("slot.serial")
    slot = np.flatnonzero(serial)
    rows = int(slot[-1]) + 1 if len(slot) else 0
    columns = [sections.read(name, rows)[slot] if name != "slot.serial" else serial[slot] for name in _SECTIONS]
    stamps = sections.read("slot.changed_seq", rows)[slot]
    return SlotTable(*(*columns, slot.astype(np.int32), stamps <= max(published, 0)))


def select(table: SlotTable, rows: NDArray[np.bool_]) -> SlotTable:
    """The rows of a boolean mask."""
    return SlotTable(*(getattr(table, f.name)[rows] for f in fields(SlotTable)))


def join(tables: list[SlotTable]) -> SlotTable:
    """All rows of several tables, ascending by slot."""
    order = np.argsort(np.concatenate([t.slot for t in tables]), kind="stable")
    return SlotTable(*(np.concatenate([getattr(t, f.name) for t in tables])[order] for f in fields(SlotTable)))


class SlotReader:
    """Settled rows over repeated looks; remembers the last good row of each request."""

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._last: SlotTable | None = None

    def read(self, published: Callable[[], int]) -> tuple[SlotTable, int, int]:
        """(table, rows left out, looks repeated).

        A row still being changed at the last look is served as it was in the last sample, marked; if the request was
        not in it, it is left out: as of the last publication seen whole it may not exist.
        """
        table = look(self._sections, published())
        looks = 1
        while not table.settled.all() and looks < LOOKS:
            open_slots = table.slot[~table.settled]
            again = look(self._sections, published())
            table = join([select(table, table.settled), select(again, np.isin(again.slot, open_slots))])
            looks += 1
        left_out = 0
        if not table.settled.all():
            table, left_out = self._with_last_good(table)
        self._last = table
        return table, left_out, looks - 1

    def _with_last_good(self, table: SlotTable) -> tuple[SlotTable, int]:
        settled = select(table, table.settled)
        missing = table.serial[~table.settled]
        if self._last is None:
            return settled, len(missing)
        # The slot too: a serial may not come back elsewhere, and one row per slot is what everybody counts on.
        found = np.isin(self._last.serial, missing) & ~np.isin(self._last.slot, settled.slot)
        kept = select(self._last, found)
        kept.settled[:] = False
        return join([settled, kept]), len(missing) - len(kept)
