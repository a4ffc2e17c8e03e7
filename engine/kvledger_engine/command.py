"""`kvledger engine`: the HTTP process, which starts an engine core and outlives it only to say that it is gone.

Owns both processes' start and end, and the ready line. While the engine drains the server still listens, so
that a client gets `draining` and not a refused connection; it stops when the core has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import msgspec
from aiohttp import web

from kvledger_engine.arguments import add_arguments
from kvledger_engine.bridge import Bridge
from kvledger_engine.errors import EngineError
from kvledger_engine.keys import ApiKeys
from kvledger_engine.options import CoreOptions, core_options
from kvledger_engine.server import CompletionServer
from kvledger_engine.template import open_template
from kvledger_engine.tokenizer import open_tokenizer

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 2.0
CORE_END_SECONDS = 5.0
"""How much longer than its drain a core may take before it is killed."""


class CannotListen(EngineError):
    """The address is taken, or not ours."""


class EngineCommand:
    """The entry point `engine` of the `kvledger` command."""

    name = "engine"
    help = "run an engine: its core, with the ledger, and an OpenAI-compatible HTTP server"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments; what they default to is `EngineConfig`'s."""
        add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Serve until SIGTERM or SIGINT. Returns 0 after a clean drain, 1 if the core died. Raises `EngineError`."""
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        options = core_options(args)
        keys = ApiKeys(Path(args.api_keys)) if args.api_keys else None
        with _bound(args.host, args.port) as listening:
            return asyncio.run(_serve(options, listening, keys, as_json=args.json))


COMMAND = EngineCommand()


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket that does not listen yet: a port in use is told before a ledger is made. Raises `CannotListen`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise CannotListen(f"{host}:{port}: {error}; choose another --host or --port") from error
    with bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError as error:
            raise CannotListen(
                f"{host}:{port}: {error}; choose another --host or --port (0 = any free port)"
            ) from error
        yield bound


def core_environment(own: Mapping[str, str]) -> dict[str, str]:
    """The core's environment: ours, and what torch's threads need to share the processors with the HTTP process.

    Threads that wait in a loop for each other take what those need that they wait for: on two busy cores a step
    takes up to three times as long. Who says otherwise in `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` is obeyed.
    """
    return {"OMP_WAIT_POLICY": "PASSIVE", **own}


def _start_core(options: CoreOptions) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The core as a child, and our end of the socketpair. When our end closes, for whatever reason, the core ends."""
    ours, theirs = socket.socketpair()
    with theirs:
        # The engine's name is an argument for `ps` alone. A group of its own: Ctrl-C in a terminal is for us to hear.
        core = subprocess.Popen(
            [sys.executable, "-m", "kvledger_engine.core", str(theirs.fileno()), options.config.engine],
            stdin=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            process_group=0,
            env=core_environment(os.environ),
        )
    assert core.stdin is not None
    # A core that dies at once is noticed where its greeting is awaited.
    with suppress(BrokenPipeError), core.stdin as stdin:
        stdin.write(msgspec.json.encode(options))
    return core, ours


async def _serve(options: CoreOptions, listening: socket.socket, keys: ApiKeys | None, *, as_json: bool) -> int:
    core, ours = _start_core(options)
    try:
        bridge = await Bridge.connect(ours)
        try:
            signals = _watch_signals()
            async with _listening(bridge, listening, keys):
                _print_ready(bridge, listening, core.pid, as_json=as_json)
                died = asyncio.create_task(_say_that_it_died(bridge, core))
                await _until_stopped(bridge, signals, options.drain_timeout_seconds)
                if not bridge.lost:
                    died.cancel()
                # A core that died just before the signal has its line all the same.
                await asyncio.wait([died])
        finally:
            await bridge.disconnect()
    finally:
        code = await asyncio.to_thread(_end_core, core)
    return 0 if code == 0 else 1


@asynccontextmanager
async def _listening(bridge: Bridge, listening: socket.socket, keys: ApiKeys | None) -> AsyncIterator[None]:
    path = bridge.hello.tokenizer_path
    app = CompletionServer(bridge, open_tokenizer(path), open_template(path), keys).app
    # Without handler_cancellation a client that leaves is not noticed.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    try:
        try:
            await web.SockSite(runner, listening).start()
        except OSError as error:
            raise CannotListen(f"{listening.getsockname()}: {error}; choose another --port") from error
        yield
    finally:
        await runner.cleanup()


def _watch_signals() -> asyncio.Queue[None]:
    """A queue with an entry for each SIGTERM or SIGINT from now on."""
    signals = asyncio.Queue[None]()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, None)
    return signals


async def _until_stopped(bridge: Bridge, signals: asyncio.Queue[None], drain_timeout_seconds: float) -> None:
    """Return once a signal has come and the core has ended, or has taken too long. A second signal cancels the rest."""
    await signals.get()
    bridge.drain()
    second = asyncio.create_task(_cancel_on(signals, bridge))
    try:
        async with asyncio.timeout(drain_timeout_seconds + CORE_END_SECONDS):
            await bridge.ended.wait()
    except TimeoutError:
        logger.error("core=stuck action=kill")
    finally:
        second.cancel()


async def _say_that_it_died(bridge: Bridge, core: subprocess.Popen[bytes]) -> None:
    """One line when the core ends badly and nobody asked it to. We go on: somebody has to tell the clients."""
    await bridge.ended.wait()
    code = await asyncio.to_thread(_end_core, core)
    if code and bridge.lost:
        logger.error("core=ended pid=%d exit_code=%d answering=503 remedy=start_this_command_again", core.pid, code)


async def _cancel_on(signals: asyncio.Queue[None], bridge: Bridge) -> None:
    while True:
        await signals.get()
        bridge.cancel_all()


def _end_core(core: subprocess.Popen[bytes]) -> int:
    """The core's exit code. It has lost us by now; one that does not end is killed."""
    try:
        return core.wait(timeout=CORE_END_SECONDS)
    except subprocess.TimeoutExpired:
        core.kill()
        return core.wait()


def _print_ready(bridge: Bridge, listening: socket.socket, core_pid: int, *, as_json: bool) -> None:
    """One line for people, or one JSON object for programs, flushed: requests are answered from now on."""
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if listening.family is socket.AF_INET6 else f"http://{host}:{port}"
    hello = bridge.hello
    ready = {
        "engine": hello.engine,
        "model": hello.model,
        "url": url,
        "ledger": hello.ledger_path,
        "pid": os.getpid(),
        "core_pid": core_pid,
        "declared": hello.declared,
    }
    said = f"{hello.engine}: serving {hello.model} at {url}, core pid {core_pid}, ledger {hello.ledger_path}"
    print(json.dumps(ready) if as_json else "; ".join([said, *hello.declared]), flush=True)
