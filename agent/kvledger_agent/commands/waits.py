"""`kvledger waits`: what the time to the first token, and the whole time, are made of, by tenant and by class."""

from __future__ import annotations

import argparse
import logging

from rich.console import Group

from kvledger_agent.bounds import above_zero
from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.documents import unreadable_rows
from kvledger_agent.looking import add_where_flags, looking_closely, say_unreadable
from kvledger_agent.plain import plain
from kvledger_agent.screen import console
from kvledger_agent.verdict.judge import WINDOW_SECONDS
from kvledger_agent.waits_table import waits_table


class WaitsCommand:
    """Shows waits by cause, prefill and decode of every engine's requests."""

    name = "waits"
    help = "print what requests waited for, and what first tokens and whole requests are made of"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add where to look, how far back, and how to print."""
        add_json_flag(parser)
        add_where_flags(parser)
        parser.add_argument(
            "--window",
            dest="window_seconds",
            type=float,
            default=WINDOW_SECONDS,
            metavar="SECONDS",
            help="how far back requests are looked at that have ended (default: %(default)g)",
        )
        parser.epilog = (
            "First token: requests that got theirs in the window. Whole: those that ended in it, however they did. "
            "Percentiles are of the whole length, the parts are means and add up. A ledger keeps the last few thousand "
            "ended requests. Exit code 1: a ledger cannot be read."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Look once, print. Returns 1 if a ledger cannot be read. Raises `NoLedger` or a `LedgerUnreadable`."""
        logging.basicConfig(level=logging.ERROR)  # what cannot be read is printed
        above_zero("window_seconds", args.window_seconds)
        with looking_closely(args.directory, args.ledger) as (sources, health):
            views = {source.identity.key: source.waits(args.window_seconds) for source in sources}
        if args.json:
            engines = [{"id": key, "waits": plain(view)} for key, view in views.items()]
            print_json({"engines": engines, "unreadable": unreadable_rows(health)})
        else:
            console().print(Group(*(waits_table(key, view) for key, view in views.items())))
        return say_unreadable(health)


COMMAND = WaitsCommand()
