"""Prefix hits: the blocks that hold the longest cached prefix of a sequence, in every cache group. Holds nothing.

Looking them up is timed as a price of sharing, and says which prefix a slot's account is with.
"""

from __future__ import annotations

import numpy as np

from kvledger.views import I32
from kvledger.writer import Ledger
from kvledger_engine.accounts import Price
from kvledger_engine.chains import PrefixChains
from kvledger_engine.ids import Ids
from kvledger_engine.metering import Metering
from kvledger_engine.windows import Windows


class PrefixHits:
    """What the prefix chains of one ledger have of a sequence, and which of it a slot would hold."""

    def __init__(self, ledger: Ledger, *, chains: PrefixChains, windows: Windows, metering: Metering) -> None:
        self._size, self._blocks = ledger.limits.groups[0].block_size_tokens, ledger.blocks
        self._chains, self._windows, self._metering = chains, windows, metering

    def match(self, slot: int, tokens: I32, salt: int) -> int:
        """Tokens of the longest cached prefix of full blocks, fewer than len(tokens). Holds nothing."""
        return len(self.find(slot, tokens, salt, looking=True)) * self._size

    def match_held(self, slot: int, tokens: I32, salt: int) -> tuple[int, int]:
        """As `match`; and how many of the prefix's blocks nobody holds, for which whoever takes them is charged."""
        hits = self.find(slot, tokens, salt, looking=True)
        held = np.concatenate(self.within(hits))
        return len(hits) * self._size, int(np.count_nonzero(self._blocks.ref_count[held] < 1))

    def find(self, slot: int, tokens: I32, salt: int, *, looking: bool = False) -> Ids:
        """The blocks of every group that hold the longest prefix of which each has its window, [blocks, groups].

        Entries before a group's window may be -1. The time is the prefix's; `looking`: see `PrefixAccounts.enter`.
        """
        began_ns = self._metering.now_ns()
        self._metering.accounts.enter(slot, self._chains.root(slot, tokens, salt), looking=looking)
        hits = self._usable(slot, tokens, salt)
        self._metering.shared(began_ns, Price.LOOKUP, slot)
        return hits

    def _usable(self, slot: int, tokens: I32, salt: int) -> Ids:
        hits = self._chains.match(slot, tokens, salt)
        if self._windows.plain:
            return hits[:, None]
        beside = self._chains.beside(slot, hits, tokens, salt)
        return beside[: self._windows.longest_usable(beside)]

    def within(self, hits: Ids) -> list[Ids]:
        """Of the blocks of a prefix, [blocks, groups], those that each group keeps."""
        if self._windows.plain:
            return [hits[:, 0]]
        outside = self._windows.outside(np.array([len(hits) * self._size]))[0]
        numbers = np.arange(len(hits))[:, None] - self._windows.sink_blocks
        kept = (numbers < 0) | (numbers >= outside)
        return [hits[kept[:, group], group] for group in range(self._windows.count)]
