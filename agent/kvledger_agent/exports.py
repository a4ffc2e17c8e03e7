"""How many exports the agent has tried and how many failed. Counts only; whoever exports does the counting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ExportTally:
    """Exports over OTLP since the agent started. One thread writes, others read single numbers."""

    tried: int = 0
    failed: int = 0
