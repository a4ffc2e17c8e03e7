"""Prefix accounts: what sharing each prefix cost, and how many tokens it made needless. Bounded; the sums are exact.

Owns `prefix.accounts`: rows of the prefixes that were of most use, by the key of their first block, and a last one for
all others, into which a row is folded that another prefix takes over. Knows no token and no text.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kvledger.layout import PREFIX_ACCOUNT
from kvledger.writer import Ledger
from kvledger_engine.compiled import accounts as kernels
from kvledger_engine.ids import Ids

_OF_USE = ("hit_tokens", "forked_tokens", "admissions")
_SUMMED = [name for name in PREFIX_ACCOUNT.names or () if name != "key"]


class Price(IntEnum):
    """What time goes to.

    Finding a prefix; taking references to its blocks and giving them back; indexing blocks that filled; copying shared
    ones.
    """

    LOOKUP = 0
    REFERENCE = 1
    INDEX = 2
    COPY = 3


class PrefixAccounts:
    """The accounts of one ledger. A request belongs to the prefix it was looked up under, until it is again."""

    def __init__(self, ledger: Ledger) -> None:
        rows = ledger.prefixes.accounts
        self._columns = {name: rows[name] for name in _SUMMED}
        self._keys = rows["key"]
        self._seconds = [rows[f"{price.name.lower()}_seconds"] for price in Price]
        self._rest = len(rows) - 1
        self._row_of: dict[int, int] = {}
        self._row_of_slot = np.full(ledger.limits.max_requests, self._rest, np.intp)

    def enter(self, slot: int, key: int, *, looking: bool = False) -> None:
        """The request in a slot begins with the block of this key; 0 = with none that could be shared.

        One that is only `looking` may never be admitted: no prefix loses its row to it, and where none is left, what
        it costs goes to all others.
        """
        row = self._rest if not key else self._row_of.get(key)
        if row is None:
            row = self._rest if looking and len(self._row_of) == self._rest else self._open(key)
        self._row_of_slot[slot] = row

    def fork(self, source: int, target: int, tokens: int) -> None:
        """The request in `target` begins as that in `source` does, with so many of its tokens."""
        row = self._row_of_slot[target] = self._row_of_slot[source]
        self._columns["forks"][row] += 1
        self._columns["forked_tokens"][row] += tokens

    def _open(self, key: int) -> int:
        row = len(self._row_of)
        if row == self._rest:
            hit, forked, seen = (self._columns[name][: self._rest] for name in _OF_USE)
            row = int(np.lexsort((seen, hit + forked))[0])
            self._fold(row)
        self._row_of[key] = row
        self._keys[row] = key
        return row

    def _fold(self, row: int) -> None:
        """Add the least useful row to that of all others, and empty it."""
        for column in self._columns.values():
            column[self._rest] += column[row]
            column[row] = 0
        del self._row_of[int(self._keys[row])]
        self._row_of_slot[self._row_of_slot == row] = self._rest

    # -- entries --------------------------------------------------------------------------------------------------

    def spent(self, price: Price, slots: Ids | int, seconds: float) -> None:
        """Seconds went to one request, or in equal parts to those of `slots`, one for each time it is there."""
        column = self._seconds[price]
        if isinstance(slots, int):
            column[self._row_of_slot[slots]] += seconds
        elif len(slots):
            kernels.enter(column, self._row_of_slot, slots, seconds / len(slots))
        else:
            column[self._rest] += seconds

    def admitted(self, slot: int, queried_tokens: int, hit_tokens: int) -> None:
        """A request was admitted: tokens looked up, and those of them that nobody computes again."""
        row = self._row_of_slot[slot]
        self._columns["admissions"][row] += 1
        self._columns["hits"][row] += hit_tokens > 0
        self._columns["queried_tokens"][row] += queried_tokens
        self._columns["hit_tokens"][row] += hit_tokens

    def copied(self, slots: Ids) -> None:
        """Shared blocks are to be copied for these requests, one for each time a slot is there."""
        np.add.at(self._columns["copied_blocks"], self._row_of_slot[slots], 1)
