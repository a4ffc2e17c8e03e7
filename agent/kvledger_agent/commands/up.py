"""`kvledger up`: everything on one machine, under load, watched; the summary when it ends."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kvledger_agent.bounds import above_zero
from kvledger_agent.command import add_json_flag, path_argument, print_json
from kvledger_agent.errors import UsageError
from kvledger_agent.load.profiles import PROFILES
from kvledger_agent.load.traces import read_trace
from kvledger_agent.screen import console
from kvledger_agent.up.parts import EXPLORER, MONITOR, Kind
from kvledger_agent.up.run import Run
from kvledger_agent.up.settings import UpSettings, find_trace
from kvledger_agent.up.stack import Stack
from kvledger_agent.up.summary import render


class UpCommand:
    """Starts engine, agent, load and what else there is to look at; watches; ends them in order."""

    name = "up"
    help = "start an engine, its agent, a load, explorer, Prometheus and Alertmanager here, and say what to open"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments; the embedded engine's sizes are in `UpSettings`."""
        add_json_flag(parser)
        parser.add_argument(
            "--for", dest="seconds", type=float, metavar="SECONDS", help="end by itself after this (until Ctrl-C)"
        )
        parser.add_argument(
            "--seed", type=int, default=0, help="of the load's arrivals, lengths and fates (%(default)s)"
        )
        parser.add_argument(
            "--trace", type=path_argument, metavar="FILE", help="replay this trace (the Azure one, where it is found)"
        )
        parser.add_argument(
            "--no-trace", action="store_true", help="drive the `mixed` profile even if a trace is found"
        )
        parser.add_argument(
            "--model",
            default=UpSettings().model,
            metavar="MODEL",
            help="what the engine computes with, as in `kvledger engine --model`: 'cell' needs no torch (%(default)s)",
        )
        parser.add_argument("--profile", choices=list(PROFILES), help="a profile of `kvledger load` instead of a trace")
        parser.add_argument("--no-explorer", action="store_true", help="do not serve the explorer")
        parser.add_argument("--no-monitor", action="store_true", help="do not run Prometheus and Alertmanager")

    def run(self, args: argparse.Namespace) -> int:
        """Run to the end. Returns 1 when a promise of the run did not hold. Raises `UsageError`, `TraceError`."""
        if args.seconds is not None:
            above_zero("--for", args.seconds)
        if args.trace is not None and not args.trace.is_file():
            raise UsageError(f"--trace {args.trace}: no such file; give a Mooncake JSONL or Azure CSV trace")
        if args.trace is not None and (args.no_trace or args.profile):
            raise UsageError("--trace with --no-trace or --profile: give one of them, they choose the load")
        if args.trace is not None:
            read_trace(args.trace)  # before anything is started: the load, which replays it, would be the last to say
        began = time.monotonic()
        trace = args.trace or (None if args.no_trace or args.profile else find_trace())
        with _interruptible(), Stack(UpSettings(model=args.model), seed=args.seed) as stack:
            stack.start()
            run = Run(stack, trace=trace, profile=args.profile, seconds=args.seconds, parts=_parts(args), began=began)
            summary = run.whole()
        if args.json:
            print_json(summary)
        else:
            console().print(render(summary))
        return 1 if summary.problems else 0


COMMAND = UpCommand()


def _parts(args: argparse.Namespace) -> tuple[Kind, ...]:
    return tuple(kind for kind, left_out in ((EXPLORER, args.no_explorer), (MONITOR, args.no_monitor)) if not left_out)


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
