"""`kvledger status`: every engine of a directory, or one ledger, on one screen or as JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from kvledger.words import Verdict
from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.documents import snapshot_document, unreadable_rows
from kvledger_agent.fleet import SourceHealth, unreadable
from kvledger_agent.looking import Look, add_where_flags, looking
from kvledger_agent.observation import Observation
from kvledger_agent.patience import INTERVAL_SECONDS, look_until_decided
from kvledger_agent.screen import console, engine_panel

_TROUBLE = (Verdict.LEAKING, Verdict.FROZEN, Verdict.STALLED)


class StatusCommand:
    """Shows what every engine's ledger says of it right now."""

    name = "status"
    help = "show every engine's pool, waits and findings; exit code 1 if something is wrong"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add where to look and how to print."""
        add_json_flag(parser)
        add_where_flags(parser)
        parser.add_argument("--watch", action="store_true", help="show it again every second, until Ctrl-C")
        parser.epilog = (
            "The bar shows the pool: █ active (held by requests or pins), ▒ cached (kept for its prefix, evicted when "
            "needed), · free. committed: blocks that admitted requests may still need up to max_tokens. "
            "headroom: free + cached − committed; below 0, some of them may have to wait or be preempted. "
            "Where something looks wrong, a live engine is watched for some seconds before that is called a finding. "
            "Exit code 1: a finding, a suspicion that is still open, a frozen or stalled engine, or a ledger that "
            "cannot be read."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Look, print. Returns 1 if something is wrong. Raises `NoLedger` or a `LedgerUnreadable` subclass."""
        logging.basicConfig(level=logging.ERROR)  # what cannot be read is part of what is printed
        with looking(args.directory, args.ledger) as look:
            status = Status(look)
            if args.watch:
                return _watch(status, as_json=args.json)
            look_until_decided(status.look)
            if args.json:
                print_json(status.document())
            else:
                console().print(status.screen())
            return status.exit_code


COMMAND = StatusCommand()


class Status:
    """The latest look at everything there is to look at."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self.observations: tuple[Observation, ...] = ()
        self.health: tuple[SourceHealth, ...] = ()

    def look(self) -> tuple[Observation, ...]:
        """Look at every ledger once."""
        self.observations, self.health = self._look()
        return self.observations

    @property
    def exit_code(self) -> int:
        """1 for a finding, an open suspicion, a frozen or stalled engine, or a ledger that cannot be read."""
        troubled = any(
            o.has_findings or o.in_doubt or (o.verdict and o.verdict.verdict in _TROUBLE) for o in self.observations
        )
        return int(troubled or bool(unreadable(self.health)))

    def document(self) -> dict[str, Any]:
        """The look as JSON data."""
        return {
            "engines": [snapshot_document(observation) for observation in self.observations],
            "unreadable": unreadable_rows(self.health),
        }

    def screen(self) -> RenderableType:
        """The look for people."""
        lost = (Text(f"{s.source}  {s.status}: {s.error}", style="red") for s in unreadable(self.health))
        return Group(*map(engine_panel, self.observations), *lost)


def _watch(status: Status, *, as_json: bool) -> int:
    """Look every second until Ctrl-C: a live screen, or one JSON document per line."""
    with _Lines() if as_json else Live(console=console(), auto_refresh=False) as output:
        try:
            while True:
                status.look()
                output.update(json.dumps(status.document()) if as_json else status.screen(), refresh=True)
                time.sleep(INTERVAL_SECONDS)
        except KeyboardInterrupt:
            return status.exit_code


class _Lines:
    """The part of `rich.live.Live` that `_watch` uses, as lines on stdout."""

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def update(self, line: Any, *, refresh: bool) -> None:
        """Print one line."""
        print(line, flush=refresh)
