"""What a person sees: progress on stderr while it runs, the table on stdout when it is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.effort import OnProgress
from bench.page import bar_text, figure, interval, missed_text, spread, verdict_text
from bench.report import Report


@contextmanager
def progress() -> Iterator[Callable[[str], OnProgress]]:
    """A function that starts a row's line and returns what moves it."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as lines:

        def start(row: str) -> OnProgress:
            task = lines.add_task(row, total=None)
            return lambda done, total: lines.update(task, completed=done, total=total)

        yield start


def print_table(report: Report) -> None:
    """The table, and which bars were missed."""
    table = Table(title="quick run: not for the record" if report.quick else None)
    for column in ("row", "measured", "value", "interval", "p10–p90", "windows", "bar", "met"):
        table.add_column(column, justify="left" if column in ("row", "measured") else "right")
    for result in report.results:
        estimate = result.estimate
        table.add_row(
            result.row,
            result.name,
            figure(estimate.value, result.unit),
            interval(estimate),
            spread(estimate),
            str(estimate.windows),
            bar_text(result),
            verdict_text(result).strip("*"),
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    for skipped in report.skipped:
        print(f"skipped: {skipped.row}: {skipped.why}")
    for result in report.missed:
        print(f"missed: {missed_text(result)}")
