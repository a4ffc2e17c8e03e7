"""Where a command looks: every ledger of a directory, or one. Owns those two flags and what opens and closes files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kvledger_agent.config import DIRECTORY_VARIABLE, default_directory
from kvledger_agent.fleet import SourceHealth
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.observation import Observation
from kvledger_agent.one_ledger import NoLedger, open_ledger
from kvledger_agent.sources import LedgerSources

Closely = tuple[tuple[LedgerSource, ...], tuple[SourceHealth, ...]]
Look = Callable[[], tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]]
_NO_DEFAULT = (
    "start one with `kvledger engine`, or name its directory with --directory (`kvledger up` prints its own directory)"
)


def add_where_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--directory` and `--ledger`, of which one may be given."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--directory",
        type=Path,
        help=f"directory of ledgers (default: {DIRECTORY_VARIABLE}, else {default_directory({})})",
    )
    where.add_argument("--ledger", type=Path, metavar="FILE", help="one ledger instead of a directory of them")


@contextmanager
def looking(directory: Path | None, ledger: Path | None, *, price_per_hour: float | None = None) -> Iterator[Look]:
    """What looks at one ledger, or at all of a directory. The look raises `NoLedger` where there is none at all."""
    if ledger is not None:
        with closing(open_ledger(ledger, price_per_hour=price_per_hour)) as source:
            yield lambda: ((source.look(),), ())
        return
    remedy = f"start an engine with {DIRECTORY_VARIABLE}={directory}"
    if directory is None:
        directory, remedy = default_directory(), _NO_DEFAULT
    with closing(LedgerSources(directory, price_per_hour=price_per_hour)) as sources:

        def look() -> tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]:
            seen = sources.look()
            if not seen[1]:
                raise NoLedger(f"no ledger in {directory}: {remedy}")
            return seen

        yield look


@contextmanager
def looking_closely(directory: Path | None, ledger: Path | None) -> Iterator[Closely]:
    """Looks once, and gives what reads each ledger that can be read, for questions of its own. Raises `NoLedger`."""
    if ledger is not None:
        with closing(open_ledger(ledger)) as source:
            source.look()
            yield (source,), ()
        return
    where = directory or default_directory()
    with closing(LedgerSources(where)) as sources:
        health = sources.look()[1]
        if not health:
            raise NoLedger(f"no ledger in {where}: {_NO_DEFAULT if directory is None else 'start an engine there'}")
        found = (sources.source(entry.source) for entry in health)
        yield tuple(source for source in found if source is not None), health
