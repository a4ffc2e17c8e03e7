"""`kvledger scorecard`: the seven figures of every engine of a directory, or of one ledger, as a table or as JSON."""

from __future__ import annotations

import argparse
import logging

from rich.console import Group

from kvledger_agent.bounds import above_zero
from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.documents import unreadable_rows
from kvledger_agent.looking import add_where_flags, looking, say_unreadable
from kvledger_agent.plain import plain
from kvledger_agent.scorecard import scorecard
from kvledger_agent.scorecard_table import scorecard_table
from kvledger_agent.screen import console


class ScorecardCommand:
    """Shows what a token costs, how many requests fit and reached, and how requests fared."""

    name = "scorecard"
    help = "print bytes per token, block size, peak, concurrency, rejections, TTFT P95 and cost, side by side"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add where to look, the price, and how to print."""
        add_json_flag(parser)
        add_where_flags(parser)
        parser.add_argument(
            "--price-per-hour",
            type=float,
            metavar="PRICE",
            help="price of one engine per hour, for the cost (default: what the engine itself counts)",
        )
        parser.epilog = (
            "Rejections, TTFT and cost are over all that the counters hold, an engine's earlier starts included; peaks "
            "are of the last 60 seconds. Maximum concurrency is what fits, reserve subtracted, at the length "
            "percentiles of ended requests. Exit code 1: a ledger cannot be read."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Look once, print. Returns 1 if a ledger cannot be read. Raises `NoLedger` or a `LedgerUnreadable`."""
        logging.basicConfig(level=logging.ERROR)  # what cannot be read is printed
        if args.price_per_hour is not None:
            above_zero("price_per_hour", args.price_per_hour)
        with looking(args.directory, args.ledger, price_per_hour=args.price_per_hour) as look:
            observations, health = look()
        cards = [scorecard(observation) for observation in observations]
        if args.json:
            print_json({"engines": plain(cards), "unreadable": unreadable_rows(health)})
        else:
            console().print(Group(*map(scorecard_table, cards)))
        return say_unreadable(health)


COMMAND = ScorecardCommand()
