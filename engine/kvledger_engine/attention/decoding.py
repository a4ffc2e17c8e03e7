"""Decoding: which rows of a step are residents, and of which class. Owns how much memory they may take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kvledger.views import I64
from kvledger_engine.attention.plan import AttentionPlan, HeadLayout
from kvledger_engine.attention.residents import Moves, Residents
from kvledger_engine.batch import Batch

MOST_ELEMENTS = 1 << 26
"""Of keys and values that residents of all layers and classes keep; whoever has no room reads the pages every step."""
_SHORTEST_BITS, _LONGEST_BITS = 6, 16


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step cut in two: `prompts` for the tiles, None where there are none, and the moves of each class of residents.

    `prompt_tokens` int64 are the tokens of the tiles in the batch; None = all of them.
    """

    prompts: AttentionPlan | None
    moves: tuple[tuple[Residents, Moves], ...] = ()
    prompt_tokens: Tensor | None = None


class Decoding:
    """The residents of all groups and classes of one model of so many `layers`. A class is a power of two of context.

    What they keep is trusted in a step after one that went through all layers: one that failed forgets them all.
    """

    def __init__(self, layout: HeadLayout, *, layers: int, most_elements: int = MOST_ELEMENTS) -> None:
        self._layout, self._layers, self._most_elements = layout, layers, most_elements
        self._classes: dict[tuple[int, int], Residents] = {}
        self._left_layers = 0

    def plan(self, batch: Batch, group: int) -> tuple[tuple[tuple[Residents, Moves], ...], I64]:
        """The moves of a step in one group, and the rows that are no residents. Groups of a step come in order."""
        if group == 0:
            self._begin()
        classes = self._classes_of(batch, group)
        for number in [key for key in self._classes if key[0] == group and key[1] not in classes]:
            del self._classes[number]
        first = np.cumsum(batch.counts, dtype=np.int64) - batch.counts
        moves, tables = [], batch.tables[group]
        for bits, rows in classes.items():
            residents = self._classes.get((group, bits))
            if residents is None:
                residents = Residents(
                    self._layout, capacity_tokens=1 << bits, block_size_tokens=batch.block_size_tokens
                )
                self._classes[group, bits] = residents
            moves.append((residents, residents.move(batch, tables, rows, first[rows])))
        taken = np.concatenate([*classes.values(), np.zeros(0, np.int64)])
        return tuple(moves), np.setdiff1d(np.arange(len(batch.counts)), taken, assume_unique=True)

    def attended(self) -> None:
        """A layer has attended."""
        self._left_layers -= 1

    def _begin(self) -> None:
        if self._left_layers:
            for residents in self._classes.values():
                residents.forget()
        self._left_layers = self._layers

    def _classes_of(self, batch: Batch, group: int) -> dict[int, I64]:
        """Rows by class, the shortest first, as far as there is room. In a group with a window there are none."""
        if batch.tables[group].window_tokens:
            return {}
        rows = np.flatnonzero(batch.counts == 1)
        bits = np.maximum(np.ceil(np.log2(batch.starts[rows] + 1)).astype(np.int64), _SHORTEST_BITS)
        found, left = {}, self._most_elements
        for each in np.unique(bits).tolist():
            of_class = rows[bits == each]
            left -= 2 * self._layers * len(of_class) * self._layout.kv_heads * self._layout.head_dim << each
            if left < 0 or each > _LONGEST_BITS:
                break
            found[each] = of_class
        return found
