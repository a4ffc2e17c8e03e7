"""What a drill found: one outcome per phase, and what the exit code says. Formats; measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rich.table import Table

UNKNOWN_TEXT = "?"


class Outcome(StrEnum):
    """Whether the pool came back to the level that it had before."""

    CAME_BACK = "came_back"
    NOT_BACK = "not_back"
    CANNOT_TELL = "cannot_tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase. Blocks are active ones; `highest` is the most that a reading showed.

    `came_back_seconds` counts from the last client that let go to the first reading that shows the level back: it is as
    fine as the readings are apart. `why` says what is not known, or what stays.
    """

    name: str
    outcome: Outcome
    clients: int = 0
    held: int = 0
    refused: int = 0
    before_blocks: float | None = None
    highest_blocks: float | None = None
    after_blocks: float | None = None
    came_back_seconds: float | None = None
    why: str | None = None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    """The phases in their order, against which server and by whose word."""

    url: str
    source: str
    phases: tuple[Phase, ...]
    outcome: Outcome = field(init=False)

    def __post_init__(self) -> None:
        """A phase that did not come back outweighs one that cannot be told."""
        outcomes = {phase.outcome for phase in self.phases}
        worst = next((o for o in (Outcome.NOT_BACK, Outcome.CANNOT_TELL) if o in outcomes), Outcome.CAME_BACK)
        object.__setattr__(self, "outcome", worst)

    @property
    def exit_code(self) -> int:
        """0 came back, 1 did not, 2 cannot tell."""
        return {Outcome.CAME_BACK: 0, Outcome.NOT_BACK: 1, Outcome.CANNOT_TELL: 2}[self.outcome]


def render(report: DrillReport) -> Table:
    """The report as a table."""
    table = Table(title=f"{report.url}: {report.outcome.replace('_', ' ')}, says {report.source}", title_justify="left")
    for name in ("phase", "outcome", "clients", "held blocks", "refused", "before", "highest", "after", "back after"):
        table.add_column(name, no_wrap=True)
    table.add_column("why")
    for phase in report.phases:
        table.add_row(phase.name, phase.outcome.replace("_", " "), *_numbers(phase), phase.why or "")
    return table


def _numbers(phase: Phase) -> Sequence[str]:
    blocks = (phase.before_blocks, phase.highest_blocks, phase.after_blocks)
    seconds = phase.came_back_seconds
    return (
        str(phase.clients),
        str(phase.held),
        str(phase.refused),
        *(UNKNOWN_TEXT if value is None else f"{value:g}" for value in blocks),
        UNKNOWN_TEXT if seconds is None else f"{seconds:.2f} s",
    )
