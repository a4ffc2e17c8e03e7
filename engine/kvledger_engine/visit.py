"""What one schedule's admission knows: rows so far, what is left, and what lanes wait for.

Data; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvledger.words import WaitCause
from kvledger_engine.admitting import Row
from kvledger_engine.batch import Rows
from kvledger_engine.budgets import Standing
from kvledger_engine.lanes import Lane


@dataclass(slots=True)
class Visit:
    """One schedule's admission: the rows so far, what is left, and what lanes have been found to wait for."""

    rows: Rows
    standing: Standing
    budget: int
    class_left: list[float]
    shut: bool
    admitted: list[Row] = field(default_factory=list)
    causes: dict[int, WaitCause] = field(default_factory=dict)
    gave_way: bool = False

    def note(self, lane: Lane, row: Row, blocks: int) -> None:
        """A lane's request was admitted with this row, and is charged with so many blocks."""
        self.standing.take(lane.column, blocks)
        self.admitted.append(row)
        self.budget -= row[2]
        self.class_left[lane.kind] -= row[2]
