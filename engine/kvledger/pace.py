"""Token clocks: requests that all go on by one token in every step are counted by one clock, like waits by a queue's.

A writer moves the clock and touches no slot; whoever goes by it has noted where it stood. Here a reader adds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from kvledger.snapshot import SlotTable
from kvledger.views import I32, I64

Rows = NDArray[np.intp]
_MOST = np.iinfo(np.int32).max


class Pace(IntFlag):
    """`slot.pace`: the clocks that a request goes by."""

    COMPUTED = 1
    GENERATED = 2


def add(table: SlotTable, clocks: Mapping[str, int], *, block_tokens: int) -> None:
    """Bring the token counts of rows that go by a clock to where it stands. `clocks` are the control words.

    Their full blocks, of `block_tokens` each, may be shared: what they write without a copy is behind those.
    """
    if not table.pace.any():
        return
    rows = np.flatnonzero(table.pace & Pace.COMPUTED)
    _go_on(table.computed_tokens, rows, _moved(clocks["pace_computed"], table.pace_computed[rows]))
    full = table.computed_tokens[rows] // block_tokens * block_tokens
    table.own_from_token[rows] = np.maximum(table.own_from_token[rows], full)
    rows = np.flatnonzero(table.pace & Pace.GENERATED)
    moved = _moved(clocks["pace_generated"], table.pace_generated[rows])
    _go_on(table.output_tokens, rows, moved)
    table.last_token_ns[rows[moved > 0]] = clocks["pace_token_ns"]


def _go_on(counts: I32, rows: Rows, moved: I64) -> None:
    counts[rows] = np.minimum(counts[rows] + moved, _MOST)


def _moved(clock: int, since: I64) -> I64:
    # A row that is being changed, or a damaged one, may claim anything: what is added stays a number of tokens.
    return np.clip(clock - since, 0, _MOST)
