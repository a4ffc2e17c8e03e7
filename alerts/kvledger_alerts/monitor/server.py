"""One server as a child process on loopback: started, waited for, ended by its pid. Knows no program by name."""

from __future__ import annotations

import ctypes
import http.client
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvledger_agent.errors import AgentError, UsageError

HOST = "127.0.0.1"
READY_PATH = "/-/ready"
READY_SECONDS, STOP_SECONDS, ASK_SECONDS, POLL_SECONDS = 60.0, 10.0, 2.0, 0.1
LAST_LINES = 4
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ServerFailed(AgentError):
    """A server ended by itself, or was not ready in time; the message ends with its last words."""


class PortTaken(AgentError):
    """A port that was asked for is taken, or not ours."""


def loopback_port(flag: str, port: int) -> int:
    """`port`, or a free one for 0. Raises `PortTaken`, or `UsageError` for what is no port."""
    if not 0 <= port < 1 << 16:
        raise UsageError(f"{flag} {port}: give a number from 0 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = error.strerror or error
            raise PortTaken(f"cannot listen on {HOST}:{port}: {reason}; choose another {flag}, or 0") from error
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Server:
    """A child that listens on a loopback port and writes to `log`. Gone when its parent is."""

    def __init__(self, name: str, command: Sequence[str], *, port: int, log: Path) -> None:
        self.name, self.port, self.url = name, port, f"http://{HOST}:{port}"
        self._log = log
        with log.open("wb") as out:
            # Its own session: Ctrl-C in the terminal reaches the parent alone, which ends its children in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        self._descriptor = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def fileno(self) -> int:
        """A descriptor that is readable once the child has ended."""
        return self._descriptor

    def wait_ready(self) -> None:
        """Until it says that it is ready. Raises `ServerFailed`."""
        deadline = time.monotonic() + READY_SECONDS
        while not self.serves(READY_PATH):
            self.require_running()
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {READY_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)
        self.require_running()  # another server may have answered on this port

    def serves(self, path: str) -> bool:
        """Whether there is such a page now."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ASK_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def require_running(self) -> None:
        """Raises `ServerFailed` when it has ended by itself."""
        if self._process.poll() is not None:
            raise self.failure(f"ended with exit code {self._process.returncode}")

    def ask_to_end(self) -> None:
        """SIGTERM, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()

    def stop(self) -> None:
        """SIGTERM, wait, SIGKILL if need be."""
        self.ask_to_end()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._descriptor)

    def failure(self, what: str) -> ServerFailed:
        """An error that names this server and quotes the end of its log."""
        words = self._log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        return ServerFailed("\n  ".join([f"{self.name} {what}{':' if words else ''}", *words]))


def wait_for_an_end(servers: Iterable[Server]) -> Server:
    """The first of these that ends; runs no code until then."""
    poll = select.poll()
    by_descriptor = {server.fileno(): server for server in servers}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    ((descriptor, _), *_) = poll.poll()
    return by_descriptor[descriptor]
