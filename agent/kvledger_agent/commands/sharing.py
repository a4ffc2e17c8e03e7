"""`kvledger sharing`: what sharing prefixes costs and saves, by prefix, as a table or as JSON."""

from __future__ import annotations

import argparse
import logging

from rich.console import Group

from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.documents import unreadable_rows
from kvledger_agent.errors import UsageError
from kvledger_agent.looking import add_where_flags, looking, say_unreadable
from kvledger_agent.plain import plain
from kvledger_agent.screen import console
from kvledger_agent.sharing_table import SHOWN, sharing_table


class SharingCommand:
    """Shows look-up, reference, index and copy time against prompt tokens that nobody computed again."""

    name = "sharing"
    help = "print what sharing prefixes costs and saves, net, by prefix"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add where to look, how many prefixes, and how to print."""
        add_json_flag(parser)
        add_where_flags(parser)
        parser.add_argument(
            "--most", type=int, default=SHOWN, metavar="N", help="prefixes in the table (default: %(default)s)"
        )
        parser.epilog = (
            "Saved is hit tokens × what a prompt token took in this engine; net is below zero where sharing took "
            "longer than that. Prefixes are salted keys of first blocks; all is since the engine's start. Exit code 1: "
            "a ledger cannot be read."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Look once, print. Returns 1 if a ledger cannot be read. Raises `NoLedger` or a `LedgerUnreadable`."""
        logging.basicConfig(level=logging.ERROR)  # what cannot be read is printed
        if args.most < 1:
            raise UsageError(f"most={args.most}: use 1 or more")
        with looking(args.directory, args.ledger) as look:
            observations, health = look()
        if args.json:
            engines = [{"id": seen.identity.key, "sharing": plain(seen.sharing)} for seen in observations]
            print_json({"engines": engines, "unreadable": unreadable_rows(health)})
        else:
            tables = [sharing_table(seen.identity.key, seen.sharing, most=args.most) for seen in observations]
            console().print(Group(*tables))
        return say_unreadable(health)


COMMAND = SharingCommand()
