"""The measured section of docs/fleet.md. Formats a run's values; holds none of its own."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.estimate import Estimate
from bench.machine import Machine
from bench.page import figure, interval, number, spread

BEGIN, END = "<!-- bench.fleet_scale: begin -->", "<!-- bench.fleet_scale: end -->"
BUSY_LOAD = 0.5
"""Above this load average other work was going on when the run began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One line. A question has the times of both forms; its estimate is of the raw one's time over the recorded's."""

    name: str
    unit: str
    estimate: Estimate
    raw_ms: float | None = None
    recorded_ms: float | None = None
    graph: bool = False
    read: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run on one machine. `size` says what was simulated."""

    machine: Machine
    prometheus: str
    size: dict[str, Any]
    rows: tuple[Measured, ...]

    def document(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


def section(run: Run) -> str:
    """The section as Markdown."""
    plain = [row for row in run.rows if row.raw_ms is None]
    asked = [row for row in run.rows if row.raw_ms is not None]
    return "\n\n".join(
        [
            _where(run),
            "\n".join(
                ["| measured | value | interval | p10–p90 | windows |", "|---|---|---|---|---|", *map(_line, plain)]
            ),
            "A question as a number of now:",
            _questions([row for row in asked if not row.graph]),
            f"The same as a graph over the last {run.size['graph_seconds']:.0f} s, a point every 15 s:",
            _questions([row for row in asked if row.graph], samples=False),
        ]
    )


def write_section(path: Path, run: Run) -> None:
    """Replace what lies between the marks of a page. Raises `BenchError` where it has none."""
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BenchError(f"{path} has no lines {BEGIN} and {END}: nowhere to write")
    path.write_text(f"{before}{BEGIN}\n{section(run)}\n{END}{after}")


def _where(run: Run) -> str:
    machine, size = run.machine, run.size
    busy = machine.load_1m > BUSY_LOAD
    text = (
        f"{size['engines']} engines × {size['tenants']} tenants, {size['models']} models, "
        f"{size['page_bytes']:,} bytes a page. Prometheus {run.prometheus}, Python {machine.python}, kvledger "
        f"{machine.kvledger}; {machine.cores} cores, {machine.cpu_model}, {machine.architecture}, Linux "
        f"{machine.kernel}, shared by Prometheus and the {size['processes']} processes that serve the pages; load "
        f"average {machine.load_1m:.2f} when the run began."
    )
    if busy:
        text += " **Other work was going on on this machine: times are too long, and are to be measured again.**"
    return text


def _line(row: Measured) -> str:
    e = row.estimate
    return f"| {row.name} | {figure(e.value, row.unit)} | {interval(e)} | {spread(e)} | {e.windows} |"


def _questions(rows: list[Measured], *, samples: bool = True) -> str:
    head = ["question", "raw", "recorded", "raw over recorded", "interval", "windows"]
    lines = [_question(row, samples) for row in rows]
    if samples:
        head.insert(1, "samples read")
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines])


def _question(row: Measured, samples: bool) -> str:
    assert row.raw_ms is not None
    assert row.recorded_ms is not None
    cells = [
        row.name,
        figure(row.raw_ms, "ms"),
        figure(row.recorded_ms, "ms"),
        figure(row.estimate.value, row.unit),
        interval(row.estimate),
        str(row.estimate.windows),
    ]
    if samples and row.read is not None:
        cells.insert(1, " → ".join(map(number, row.read)))
    return f"| {' | '.join(cells)} |"
