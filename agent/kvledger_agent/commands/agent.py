"""`kvledger agent`: samples ledgers and scraped engines, and serves `/metrics` and the API until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from aiohttp import web

from kvledger_agent.agent import Agent
from kvledger_agent.command import add_json_flag, path_argument, print_json
from kvledger_agent.config import AGENT_PREFIX, DIRECTORY_VARIABLE, AgentConfig, default_directory, otlp_url, resolve
from kvledger_agent.documents import snapshot_document, unreadable_rows
from kvledger_agent.errors import AgentError
from kvledger_agent.extras import missing_extra
from kvledger_agent.http import make_app

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
SWITCH_SECONDS = 0.0005
"""How long a scrape waits for the sampling thread at most each time it wants the interpreter; Python's own is 5 ms."""


class CannotListen(AgentError):
    """The address is taken, or not ours."""


class AgentCommand:
    """Runs the agent: one sampling thread, one HTTP server."""

    name = "agent"
    help = "watch a directory of ledgers, and engines by their pages; serve /metrics and the JSON API"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the settings; what is not given comes from the environment, then from the defaults of `AgentConfig`."""
        add_json_flag(parser)
        defaults = AgentConfig(directory=default_directory({}))
        parser.add_argument(
            "--directory",
            type=path_argument,
            help=f"directory of ledgers ({DIRECTORY_VARIABLE}, else {defaults.directory})",
        )
        parser.add_argument(
            "--scrape",
            action="append",
            metavar="[NAME=]URL",
            help="watch an engine by the page it serves, such as http://127.0.0.1:8000; may be given more than once",
        )
        for field, kind, metavar, text in _settings(defaults):
            flag = f"--{field.removesuffix('_seconds').replace('_', '-')}"
            parser.add_argument(flag, dest=field, type=kind, metavar=metavar, help=text)
        parser.add_argument(
            "--once",
            action="store_true",
            help="sample once, print the metrics page, or with --json every engine's snapshot document, and exit, "
            "with 1 where there is no engine",
        )
        parser.epilog = (
            f"Every setting has a variable, too: {AGENT_PREFIX}PORT, {AGENT_PREFIX}INTERVAL_SECONDS and so on. Headers "
            "for --otlp are taken from OTEL_EXPORTER_OTLP_HEADERS, so that no secret stands in the list of processes."
        )

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGTERM or SIGINT, or print one page. Returns 0, or 1 for a page without any engine. Raises
        `CannotListen` or `UsageError`, or `MissingExtra` for --otlp without what it needs.
        """
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        config = resolve(vars(args) | {"scrape": tuple(args.scrape) if args.scrape else None})
        with closing(Agent(config)) as agent:
            if args.once:
                agent.sample_once()
                _print_once(agent, as_json=args.json)
                return 0 if agent.fleet.observations else 1
            sys.setswitchinterval(SWITCH_SECONDS)
            with _exporting(agent):
                asyncio.run(_serve(agent, as_json=args.json))
        return 0


COMMAND = AgentCommand()


def _settings(defaults: AgentConfig) -> list[tuple[str, type[Any], str, str]]:
    """Every setting that is one word or number: field, type, what stands for it, what it says with the default."""
    return [
        ("host", str, "HOST", f"address to listen on ({defaults.host})"),
        ("port", int, "PORT", f"port to listen on; 0 picks a free one ({defaults.port})"),
        ("interval_seconds", float, "SECONDS", f"time between two samples ({defaults.interval_seconds:g})"),
        (
            "stale_after_seconds",
            float,
            "SECONDS",
            f"age of a sample that is refused with 503 ({defaults.stale_after_seconds:g})",
        ),
        ("price_per_hour", float, "PRICE", "price of one engine per hour, for kvledger_cost_total (none)"),
        (
            "scrape_interval_seconds",
            float,
            "SECONDS",
            f"time between two scrapes ({defaults.scrape_interval_seconds:g})",
        ),
        (
            "scrape_timeout_seconds",
            float,
            "SECONDS",
            f"time that one scrape may take ({defaults.scrape_timeout_seconds:g})",
        ),
        (
            "verdict_window_seconds",
            float,
            "SECONDS",
            f"past that a verdict is judged over ({defaults.verdict_window_seconds:g})",
        ),
        ("otlp", str, "URL", "export over OTLP/HTTP to this endpoint, such as http://127.0.0.1:4318 (none)"),
        ("otlp_interval_seconds", float, "SECONDS", f"time between two exports ({defaults.otlp_interval_seconds:g})"),
        (
            "otlp_timeout_seconds",
            float,
            "SECONDS",
            f"time that one export may take ({defaults.otlp_timeout_seconds:g})",
        ),
    ]


def _print_once(agent: Agent, *, as_json: bool) -> None:
    if as_json:
        engines = [snapshot_document(observation) for observation in agent.fleet.observations]
        print_json({"engines": engines, "unreadable": unreadable_rows(agent.fleet.sources)})
    else:
        sys.stdout.write(agent.metrics_text())


@contextmanager
def _exporting(agent: Agent) -> Iterator[None]:
    """Export what the agent samples, if an endpoint was given. Raises `MissingExtra`."""
    if agent.config.otlp is None:
        yield
        return
    try:
        # Only here: who does not export needs no OpenTelemetry and does not pay for importing it.
        from kvledger_agent.exporters.otlp_push import OtlpPush
    except ModuleNotFoundError as error:
        raise missing_extra("agent --otlp", error) or error from error
    push = OtlpPush(agent, otlp_url(agent.config.otlp))
    push.start()
    try:
        yield
    finally:
        push.stop()


async def _serve(agent: Agent, *, as_json: bool) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(make_app(agent), access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        url = await _listen(runner, agent.config)
        agent.start()
        _announce(url, agent.config, as_json=as_json)
        await stop.wait()
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, config: AgentConfig) -> str:
    """Start listening; the base URL. Raises `CannotListen`."""
    try:
        await web.TCPSite(runner, config.host, config.port).start()
    except (OSError, OverflowError, UnicodeError) as error:
        raise CannotListen(f"{config.host}:{config.port}: {error}; choose another --host or --port") from error
    address = runner.addresses[0]
    host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
    return f"http://{host}:{address[1]}"


def _announce(url: str, config: AgentConfig, *, as_json: bool) -> None:
    """One line on stdout once the port answers."""
    metrics, engines = f"{url}/metrics", f"{url}/v1/engines"
    known: dict[str, Any] = {"url": url, "metrics": metrics, "engines": engines, "directory": str(config.directory)}
    known |= {"scrape": list(config.scrape)} if config.scrape else {}
    scraped = "".join(f", {endpoint}" for endpoint in config.scrape)
    line = f"watching {config.directory}{scraped}; metrics at {metrics}, engines at {engines}"
    print(json.dumps(known) if as_json else line, flush=True)
