"""`kvledger snapshot FILE`: who holds what in one ledger, whether its engine lives, was closed or was killed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.documents import requests_document, snapshot_document
from kvledger_agent.observation import Observation
from kvledger_agent.one_ledger import open_ledger
from kvledger_agent.patience import look_until_decided
from kvledger_agent.request_rows import RequestRow, request_rows
from kvledger_agent.screen import console, engine_panel
from kvledger_agent.tables import request_table


class SnapshotCommand:
    """Prints one ledger: its numbers, its findings, and every request with what it holds."""

    name = "snapshot"
    help = "print one ledger file, live or left behind: who holds what; exit code 1 if it shows a finding"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the file and how to print it."""
        add_json_flag(parser)
        parser.add_argument("file", type=Path, metavar="FILE", help="the ledger: ENGINE.RANK.EPOCH.kvledger, or a copy")
        parser.epilog = (
            "A ledger whose engine is gone is judged at once; a live one that shows something wrong is watched for "
            "some seconds before that is called a finding."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the ledger. Returns 1 for a finding or an open suspicion. Raises `NoLedger` or `LedgerUnreadable`."""
        with closing(open_ledger(args.file)) as source:
            (observation,) = look_until_decided(lambda: (source.look(),))
            sample, audit = source.reader.sample(), source.reader.audit()
            if args.json:
                held = requests_document(sample, audit)
                print_json(snapshot_document(observation) | {"holders": held["requests"], "pins": held["pins"]})
            else:
                _show(observation, request_rows(sample, audit))
        return int(observation.has_findings or observation.in_doubt)


def _show(observation: Observation, rows: Sequence[RequestRow]) -> None:
    output = console()
    output.print(engine_panel(observation))
    if rows:
        output.print(request_table(rows))


COMMAND = SnapshotCommand()
