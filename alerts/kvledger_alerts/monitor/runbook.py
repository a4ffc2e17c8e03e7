"""`kvledger runbook`: serves the runbook's pages until it is told to stop, beside a Prometheus of one's own."""

from __future__ import annotations

import argparse
import json
import os
import threading

from kvledger_agent.command import add_json_flag
from kvledger_agent.errors import UsageError
from kvledger_alerts.monitor.command import RUNBOOK_PORT, interruptible
from kvledger_alerts.monitor.pages import RunbookServer
from kvledger_alerts.monitor.server import HOST


class RunbookCommand:
    """The pages that alerts and boards link to, and nothing else."""

    name = "runbook"
    help = "serve the runbook's pages, to which alerts and boards link; `kvledger monitor` does, too"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_json_flag(parser)
        parser.add_argument(
            "--host", default=HOST, help="address to listen on: there is no authentication (%(default)s)"
        )
        parser.add_argument("--port", type=int, default=RUNBOOK_PORT, help="0 picks a free one (%(default)s)")

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGTERM or SIGINT; returns 0 then. Raises `PortTaken`, `UsageError`."""
        if not 0 <= args.port < 1 << 16:
            raise UsageError(f"--port {args.port}: give a number from 0 to 65535")
        with interruptible(), RunbookServer(args.port, host=args.host) as served:
            known = {"url": served.url, "pid": os.getpid()}
            print(json.dumps(known) if args.json else f"runbook {served.url}", flush=True)
            try:
                threading.Event().wait()
            except KeyboardInterrupt:
                return 0
        raise AssertionError("an event that nobody sets was set")


COMMAND = RunbookCommand()
