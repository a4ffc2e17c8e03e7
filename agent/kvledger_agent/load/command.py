"""`kvledger load`: arguments to a plan, progress on a terminal, the report on stdout. Sends nothing itself."""

from __future__ import annotations

import argparse
import asyncio
import resource
import signal
import sys
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.status import Status

from kvledger_agent.command import add_json_flag, print_json
from kvledger_agent.errors import UsageError
from kvledger_agent.load.arguments import add_arguments, plan_of
from kvledger_agent.load.client import API_KEY_VARIABLE
from kvledger_agent.load.plan import LoadPlan
from kvledger_agent.load.report import LoadReport, render
from kvledger_agent.load.runner import OnProgress, Stop, drive
from kvledger_agent.load.tally import Progress
from kvledger_agent.screen import console

SPARE_FILES = 64


class LoadCommand:
    """Drives an endpoint open loop and reports what its clients saw."""

    name = "load"
    help = "drive any OpenAI-compatible endpoint open loop, from a profile or a trace"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add all arguments, grouped as people look for them."""
        parser.epilog = f"The API key, if there is one, is read from {API_KEY_VARIABLE}. Exit code 1: a request failed."
        add_json_flag(parser)
        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Run the plan. Returns 1 if a request failed (refusals, cancellations and timeouts are not failures)."""
        plan = plan_of(args)
        _allow_open_files(plan.max_in_flight)
        print(f"load: {args.url}, {plan.in_words()}", file=sys.stderr, flush=True)
        report = asyncio.run(_until_signalled(plan, args.url))
        if args.json:
            print_json(report)
        else:
            console().print(render(report))
        _warn(report)
        return 1 if report.failed else 0


COMMAND = LoadCommand()


def _allow_open_files(connections: int) -> None:
    """Raise this process's own limit of open files as far as the plan needs it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{connections} requests in flight need {needed} open files, the limit is {hard}: lower --max-in-flight"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        except (OSError, ValueError) as error:
            raise UsageError(f"{needed} open files are more than this machine allows: lower --max-in-flight") from error


async def _until_signalled(plan: LoadPlan, url: str) -> LoadReport:
    """The first SIGINT or SIGTERM ends the arrivals, the second one cuts the open requests too."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.ask)
    with _progress() as on_progress:
        return await drive(plan, base_url=url, on_progress=on_progress, stop=stop)


def _progress() -> AbstractContextManager[OnProgress | None]:
    stderr = Console(stderr=True)
    return _ProgressLine(stderr) if stderr.is_terminal else nullcontext(None)


class _ProgressLine(AbstractContextManager[OnProgress]):
    """One line on stderr that is rewritten as the run goes on."""

    def __init__(self, console: Console) -> None:
        self._status = Status("load: starting", console=console)

    def __enter__(self) -> OnProgress:
        self._status.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def _show(self, progress: Progress) -> None:
        self._status.update(
            f"{progress.elapsed_seconds:.0f} s  sent {progress.sent:,}  open {progress.in_flight:,}  "
            f"completed {progress.completed:,}  rejected {progress.rejected:,}  failed {progress.failed:,}  "
            f"tokens {progress.output_tokens:,}"
        )


def _warn(report: LoadReport) -> None:
    """Say on stderr when the generator itself fell short of the plan."""
    late_seconds = report.generator_lateness.p99_seconds
    if report.dropped:
        print(f"load: {report.dropped} arrivals were not sent: too many in flight", file=sys.stderr)
    if late_seconds is not None and late_seconds > 0.1:
        print(
            f"load: this generator was {late_seconds:.3f} s late at p99; use more machines or a lower rate",
            file=sys.stderr,
        )
