"""`python -m bench`: measure the rows, print the table, write docs/benchmarks.md; exit 1 on a missed bar.

Only a full run of all rows writes the page: one row, or a quick run, is no record.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.effort import Effort
from bench.errors import BenchError, NotHere
from bench.machine import this_machine
from bench.page import page
from bench.report import Report, Skipped
from bench.result import Result
from bench.rows import ROWS, Row
from bench.screen import print_table, progress

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def main(arguments: Sequence[str] | None = None, *, rows: Sequence[Row] = ROWS, path: Path = PAGE) -> int:
    """Run the benchmarks. Returns 1 when a bar is missed or a row cannot be measured, 2 for wrong arguments."""
    args = _parser(rows).parse_args(arguments)
    wanted = [row for row in rows if args.only is None or row.name in args.only]
    machine = this_machine()
    try:
        results, skipped = _measured(wanted, quick=args.quick, whole=args.whole)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    report = Report(machine, results, args.quick, skipped)
    if args.json:
        print(json.dumps(report.document(), indent=2, allow_nan=False))
    else:
        print_table(report)
    _write(report, path, whole=len(wanted) == len(rows))
    return 1 if report.missed else 0


def _parser(rows: Sequence[Row]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[row.name for row in rows], metavar="ROW", help="this row (may be repeated)"
    )
    parser.add_argument("--quick", action="store_true", help="few windows, for trying things out")
    parser.add_argument("--whole", action="store_true", help="whole traces, where a row takes a part of one otherwise")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    return parser


def _measured(rows: Sequence[Row], *, quick: bool, whole: bool) -> tuple[list[Result], list[Skipped]]:
    """What was measured, and the rows that cannot be measured on this machine."""
    results: list[Result] = []
    skipped: list[Skipped] = []
    with progress() as start:
        for row in rows:
            try:
                results += row.measure(Effort(quick=quick, whole=whole, on_progress=start(row.name)))
            except NotHere as lack:
                skipped.append(Skipped(row.name, str(lack)))
    return results, skipped


def _write(report: Report, path: Path, *, whole: bool) -> None:
    """Write the page of a full run, missed bars and all."""
    if report.quick or not whole:
        print(f"{path.name} is left as it is: only a full run of all rows writes it", file=sys.stderr)
        return
    path.write_text(page(report))
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
