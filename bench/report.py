"""A whole run: where it was made, what was measured, which bars were missed; as data for JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from bench.machine import Machine
from bench.result import Result, missed


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be measured on this machine, and what it lacks."""

    row: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """Results of one run on one machine. `quick` results are for trying things out and are never committed."""

    machine: Machine
    results: list[Result]
    quick: bool
    skipped: list[Skipped] = field(default_factory=list)

    @property
    def missed(self) -> list[Result]:
        """Results whose bar is not met."""
        return missed(self.results)

    def document(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "machine": dataclasses.asdict(self.machine),
            "quick": self.quick,
            "results": [dataclasses.asdict(result) | {"met": result.met} for result in self.results],
            "skipped": [dataclasses.asdict(row) for row in self.skipped],
            "missed": [result.name for result in self.missed],
        }
