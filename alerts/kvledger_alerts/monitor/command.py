"""`kvledger monitor`: serves alerts and runbook on loopback until it is told to stop. Needs Prometheus on the PATH."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from kvledger_agent.addresses import http_parts
from kvledger_agent.client import DEFAULT_URL, check_url
from kvledger_agent.command import add_json_flag, path_argument
from kvledger_agent.errors import UsageError
from kvledger_alerts.monitor.pages import RunbookServer
from kvledger_alerts.monitor.pair import Pair, Plan
from kvledger_alerts.monitor.programs import ALERTMANAGER, PROMETHEUS, ProgramMissing
from kvledger_alerts.monitor.server import loopback_port

PROMETHEUS_PORT, ALERTMANAGER_PORT, RUNBOOK_PORT = 9090, 9093, 9095
WEBHOOK_VARIABLE = "KVLEDGER_WEBHOOK"
_ENDING = (signal.SIGTERM, signal.SIGINT)


class MonitorCommand:
    """Runs Prometheus and Alertmanager with the generated rules over one or more agents."""

    name = "monitor"
    help = "run Prometheus and Alertmanager here with kvledger's rules and runbook, over one or more agents"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_json_flag(parser)
        parser.add_argument(
            "--agent", action="append", metavar="URL", help=f"an agent to scrape; may be repeated ({DEFAULT_URL})"
        )
        ports = (
            ("--port", PROMETHEUS_PORT),
            ("--alertmanager-port", ALERTMANAGER_PORT),
            ("--runbook-port", RUNBOOK_PORT),
        )
        for flag, port in ports:
            parser.add_argument(flag, type=int, default=port, metavar="PORT", help="0 picks a free one (%(default)s)")
        parser.add_argument(
            "--data",
            type=path_argument,
            metavar="DIR",
            help="keep files, samples and silences there (a temporary directory, removed at the end)",
        )
        parser.add_argument(
            "--webhook",
            metavar="URL",
            help=f"send every notification there (nowhere); a secret address belongs into {WEBHOOK_VARIABLE}",
        )

        parser.add_argument(
            "--runbook-base",
            metavar="URL",
            help="where you serve the runbook's pages; alerts link there (they are served here, at --runbook-port)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGTERM or SIGINT; returns 0 then.

        Raises `ProgramMissing`, `PortTaken`, `UsageError`, or `ServerFailed` when one of them ends by itself.
        """
        plan = _plan(args)
        with interruptible(), _workplace(args.data) as directory, _runbook(args) as runbook:
            plan = replace(plan, runbook_base=runbook)
            try:
                with Pair(plan, directory) as pair:
                    _announce(pair, plan, directory, as_json=args.json)
                    pair.run()
            except KeyboardInterrupt:
                return 0
        raise AssertionError("a pair of servers ended without an error")


COMMAND = MonitorCommand()


def _plan(args: argparse.Namespace) -> Plan:
    agents = [check_url(url) for url in args.agent or [DEFAULT_URL]]
    prometheus, alertmanager = PROMETHEUS.require(), ALERTMANAGER.find()
    webhook = args.webhook or os.environ.get(WEBHOOK_VARIABLE)
    if webhook is not None:
        _check_webhook(webhook)
        if alertmanager is None:
            raise ProgramMissing(f"--webhook needs it: {ALERTMANAGER.missing}")
    return Plan(
        prometheus=prometheus,
        alertmanager=alertmanager,
        prometheus_port=loopback_port("--port", args.port),
        alertmanager_port=0 if alertmanager is None else loopback_port("--alertmanager-port", args.alertmanager_port),
        agents=agents,
        webhook_url=webhook,
    )


def _check_webhook(url: str) -> None:
    if http_parts(url) is None:
        # Not repeated: it may be a secret.
        raise UsageError("--webhook is no URL: give an address such as http://127.0.0.1:5001/alerts")


def _announce(pair: Pair, plan: Plan, directory: Path, *, as_json: bool) -> None:
    """One line on stdout, once both are ready."""
    missing = [] if plan.alertmanager else [ALERTMANAGER.missing]
    if as_json:
        known = {
            "url": pair.prometheus_url,
            "alerts": pair.alerts_url,
            "alertmanager": pair.alertmanager_url,
            "runbook": plan.runbook_base,
            "agents": list(plan.agents),
            "missing": missing,
            "directory": str(directory),
            "pid": os.getpid(),
        }
        print(json.dumps(known), flush=True)
        return
    told = pair.alertmanager_url or "none, nobody is told"
    agents = ", ".join(plan.agents)
    print(f"alerts {pair.alerts_url}, alertmanager {told}, runbook {plan.runbook_base}, agents {agents}", flush=True)
    for sentence in missing:
        print(sentence, file=sys.stderr)


@contextmanager
def _workplace(given: Path | None) -> Iterator[Path]:
    """The directory that was given, or a temporary one that is removed. Raises `UsageError`."""
    if given is None:
        directory = Path(tempfile.mkdtemp(prefix="kvledger-monitor-"))
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return
    try:
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--data {given}: {error.strerror}; give a directory that can be written") from error
    yield given.resolve()


@contextmanager
def _runbook(args: argparse.Namespace) -> Iterator[str]:
    """What alerts link to: the address given, or that of a server of ours. Raises `PortTaken`, `UsageError`."""
    if args.runbook_base is not None:
        if http_parts(args.runbook_base) is None:
            raise UsageError(f"--runbook-base {args.runbook_base!r}: give an address such as http://127.0.0.1/runbook/")
        yield args.runbook_base
        return
    with RunbookServer(loopback_port("--runbook-port", args.runbook_port)) as served:
        yield served.url


@contextmanager
def interruptible() -> Iterator[None]:
    """The first SIGTERM or SIGINT is a KeyboardInterrupt; what follows it cannot disturb the end that it began."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
