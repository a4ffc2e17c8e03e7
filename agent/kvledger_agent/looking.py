"""Where a command looks: every ledger of a directory, or one.

Owns those two flags, what opens and closes files, and how ledgers that cannot be read are said.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kvledger_agent.command import path_argument
from kvledger_agent.config import DIRECTORY_VARIABLE, default_directory
from kvledger_agent.fleet import SourceHealth, unreadable
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
        type=path_argument,
        help=f"directory of ledgers (default: {DIRECTORY_VARIABLE}, else {default_directory({})})",
    )
    where.add_argument("--ledger", type=path_argument, metavar="FILE", help="one ledger instead of a directory of them")


@contextmanager
def looking(directory: Path | None, ledger: Path | None, *, price_per_hour: float | None = None) -> Iterator[Look]:
    """What looks at one ledger, or at all of a directory. The look raises `NoLedger` where there is none at all."""
    if ledger is not None:
        with closing(open_ledger(ledger, price_per_hour=price_per_hour)) as source:
            yield lambda: ((source.look(),), ())
        return
    with closing(LedgerSources(directory or default_directory(), price_per_hour=price_per_hour)) as sources:

        def look() -> tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]:
            seen = sources.look()
            if not seen[1]:
                raise _none_in(directory)
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
    with closing(LedgerSources(directory or default_directory())) as sources:
        health = sources.look()[1]
        if not health:
            raise _none_in(directory)
        found = (sources.source(entry.source) for entry in health)
        yield tuple(source for source in found if source is not None), health


def say_unreadable(health: Iterable[SourceHealth]) -> int:
    """Print on stderr which ledgers cannot be read, and why. The exit code: 1 if there is one, else 0."""
    lost = unreadable(health)
    for source in lost:
        print(f"{source.source}  {source.status}: {source.error}", file=sys.stderr)
    return int(bool(lost))


def _none_in(directory: Path | None) -> NoLedger:
    if directory is None:
        return NoLedger(f"no ledger in {default_directory()}: {_NO_DEFAULT}")
    return NoLedger(f"no ledger in {directory}: start an engine with {DIRECTORY_VARIABLE}={directory}")
