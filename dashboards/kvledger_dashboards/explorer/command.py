"""`kvledger explorer`: becomes the explorer's server, on loopback. Never imports streamlit itself."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import sys
from pathlib import Path

from kvledger_agent.client import DEFAULT_URL, check_url
from kvledger_agent.command import add_json_flag
from kvledger_agent.errors import AgentError, MissingExtra, UsageError
from kvledger_agent.extras import DISTRIBUTION
from kvledger_dashboards.explorer.settings import AGENT_VARIABLE

DEFAULT_PORT = 8501
NEEDED = ("streamlit", "plotly")
SCRIPT = Path(__file__).with_name("streamlit_app.py")


class PortTaken(AgentError):
    """The address is taken, or not ours."""


class ExplorerCommand:
    """Shows the block pool of every engine of an agent in a browser."""

    name = "explorer"
    help = "serve the block-pool explorer: overview, block map, requests and leaks in a browser"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments."""
        add_json_flag(parser)
        parser.add_argument(
            "--agent",
            metavar="URL",
            help=f"the agent's address; it may come up later ({AGENT_VARIABLE}, else {DEFAULT_URL})",
        )
        parser.add_argument(
            "--host", default="127.0.0.1", help="address to listen on: there is no authentication (%(default)s)"
        )
        parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 picks a free one (%(default)s)")

    def run(self, args: argparse.Namespace) -> int:
        """Become the server; does not return. Raises `MissingExtra`, `UsageError` or `PortTaken`."""
        agent = check_url(args.agent or os.environ.get(AGENT_VARIABLE) or DEFAULT_URL)
        require_packages()
        port = free_port(args.host, args.port)
        url = f"http://{args.host}:{port}"
        announced = {"url": url, "health": f"{url}/_stcore/health", "agent": agent, "pid": os.getpid()}
        print(json.dumps(announced) if args.json else f"explorer {url} of the agent {agent}", flush=True)
        os.execve(sys.executable, server_arguments(args.host, port), os.environ | {AGENT_VARIABLE: agent})


COMMAND = ExplorerCommand()


def server_arguments(host: str, port: int) -> list[str]:
    """The command line of the server; everything else is in `.streamlit/config.toml` beside the script."""
    flags = {
        "server.address": host,
        "server.port": port,
        "server.headless": "true",
        "browser.gatherUsageStats": "false",
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
    return [sys.executable, "-m", "streamlit", "run", str(SCRIPT), *given]


def require_packages() -> None:
    """Raises `MissingExtra` naming what is not installed, and how to install it."""
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            remedy = f"pip install '{DISTRIBUTION}[explorer]'"
            raise MissingExtra(f"`explorer` needs {module}, which is not installed: {remedy}")


def free_port(host: str, port: int) -> int:
    """`port`, or a free one for 0. Raises `PortTaken`, or `UsageError` for what is no port."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"--port {port}: give a number from 0 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
            ) from error
        return int(probe.getsockname()[1])
