"""`kvledger doctor URL`: what a live engine's page reports, what it does not, what that blinds, how to switch it on."""

from __future__ import annotations

import argparse
import math
from typing import Any

from kvledger_agent.bounds import above_zero
from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.plain import plain
from kvledger_agent.scrape.capabilities import Checkup, checkup
from kvledger_agent.scrape.checkup_table import checkup_report
from kvledger_agent.scrape.endpoint import parse_endpoint
from kvledger_agent.scrape.fetch import TIMEOUT_SECONDS
from kvledger_agent.scrape.scrape_source import Scraper
from kvledger_agent.screen import console


class DoctorCommand:
    """Looks at one endpoint once."""

    name = "doctor"
    help = "say what an engine's metrics page tells and what it cannot; exit code 1 if it lacks what it should have"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the endpoint, how long to wait, and how to print."""
        add_json_flag(parser)
        parser.add_argument("url", metavar="URL", help="the engine, such as http://127.0.0.1:8000, or its page")
        parser.add_argument(
            "--timeout",
            dest="timeout_seconds",
            type=float,
            default=TIMEOUT_SECONDS,
            metavar="SECONDS",
            help=f"time that one answer may take ({TIMEOUT_SECONDS:g})",
        )
        parser.epilog = (
            "Without a path in the URL, those of all known engines are tried. An engine marked unverified was never "
            "run against: what is said of it comes from its source and documentation. Exit code 1: the page lacks a "
            "family that its version should have, has damaged lines, or there is no page of a known engine."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Scrape once, print. Returns 1 for an incomplete page. Raises `ScrapeFailed` or `UsageError`."""
        above_zero("timeout_seconds", args.timeout_seconds)
        scraper = Scraper(parse_endpoint(args.url), timeout_seconds=args.timeout_seconds)
        scraped = scraper.scrape()
        found = checkup(f"{scraper.endpoint.base}{scraped.path}", scraped)
        if args.json:
            print_json(document(found))
        else:
            console().print(checkup_report(found))
        return int(not found.complete)


def document(found: Checkup) -> dict[str, Any]:
    """A checkup as JSON data; a staleness without limit is null, and said by `holds_last_value`."""
    last = found.stale_when_idle_seconds
    known: dict[str, Any] = plain(found)
    return known | {"complete": found.complete, "holds_last_value": last is not None and math.isinf(last)}


COMMAND = DoctorCommand()
