"""One child process: in a session of its own, ended by its pid, gone when its parent is. Knows no command by name."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvledger_agent.errors import AgentError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ChildFailed(AgentError):
    """A child process ended, or did not become ready, before it should have; the message ends with its last words."""


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Child:
    """A `kvledger` subcommand as a child. Its stderr goes to `log`, its stdout is read by this object."""

    def __init__(
        self, name: str, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.log = name, log
        self._out = b""
        self._final: str | None = None
        with log.open("ab") as stderr:
            # Its own session: Ctrl-C in the terminal reaches the parent alone, which ends the children in order.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvledger_agent", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                env={**os.environ, **(environment or {})},
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def first_line(self, timeout_seconds: float) -> dict[str, Any]:
        """The JSON object a server prints when it is ready. Raises `ChildFailed` if none comes in time."""
        deadline = time.monotonic() + timeout_seconds
        assert self._process.stdout is not None
        while b"\n" not in self._out:
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, left))
            chunk = os.read(self._process.stdout.fileno(), 65536) if readable else b""
            if not chunk:
                raise self.failure(f"was not ready within {timeout_seconds:.0f} s" if not readable else "ended at once")
            self._out += chunk
        line, _, self._out = self._out.partition(b"\n")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise self.failure(f"printed {line[:80]!r} where a JSON object was expected")
        return found

    def require_running(self) -> None:
        """Raises `ChildFailed` when the child has ended by itself."""
        if not self.running:
            raise self.failure(f"ended with exit code {self._process.returncode}")

    def ask(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal, if the child still runs."""
        if self.running:
            self._process.send_signal(number)

    def output(self, timeout_seconds: float) -> str:
        """Wait for the end and return what else it printed. Killed when it takes longer than `timeout_seconds`."""
        if self._final is not None:
            return self._final
        try:
            rest, _ = self._process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            rest, _ = self._process.communicate()
        self._final = (self._out + rest).decode(errors="replace")
        return self._final

    def stop(self, timeout_seconds: float) -> int:
        """SIGTERM, wait, SIGKILL if need be; the exit code."""
        self.ask(signal.SIGTERM)
        self.output(timeout_seconds)
        return self._process.returncode

    def failure(self, what: str) -> ChildFailed:
        """An error that names this child and quotes the end of its log."""
        words = self.log.read_text(errors="replace").strip().splitlines()[-5:] if self.log.exists() else []
        return ChildFailed("\n  ".join([f"{self.name} {what}{':' if words else ''}", *words]))
