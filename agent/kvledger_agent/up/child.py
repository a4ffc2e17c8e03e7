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
from functools import partial
from pathlib import Path
from typing import Any

from kvledger_agent.errors import AgentError

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ChildFailed(AgentError):
    """A child process ended, or did not become ready, before it should have; the message ends with its last words."""


def _begin(niceness: int) -> None:
    """In the child, before it is the program: it dies with its parent."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    os.nice(niceness)


class Child:
    """A `kvledger` subcommand as a child. Its stderr goes to `log`, its stdout is read by this object.

    `niceness` is added to ours: above 0, it gets what processor time the others leave.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        niceness: int = 0,
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
                preexec_fn=partial(_begin, niceness),
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
        while b"\n" not in self._out:
            if not self._read(max(0.0, deadline - time.monotonic())):
                raise self.failure(f"was not ready within {timeout_seconds:.0f} s")
        return self._take_line()

    def line_if_any(self) -> dict[str, Any] | None:
        """The JSON object that it has printed, None as long as it has not. Raises `ChildFailed` if it ended first."""
        self._read(0.0)
        return self._take_line() if b"\n" in self._out else None

    def _read(self, timeout_seconds: float) -> bool:
        """Take what it printed; whether there was anything in time. Raises `ChildFailed` at its end."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], timeout_seconds)
        if not readable:
            return False
        chunk = os.read(self._process.stdout.fileno(), 65536)
        if not chunk:
            raise self.failure("ended at once")
        self._out += chunk
        return True

    def _take_line(self) -> dict[str, Any]:
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
        words = self._words()[-5:]
        return ChildFailed("\n  ".join([f"{self.name} {what}{':' if words else ''}", *words]))

    @property
    def has_spoken(self) -> bool:
        """Whether there is anything in its log."""
        return bool(self._words())

    @property
    def last_word(self) -> str:
        """The last line of its log, as the command shows its errors; its exit code where it said nothing."""
        words = self._words()
        return words[-1].removeprefix("kvledger: ") if words else f"exit code {self.exit_code}"

    def _words(self) -> list[str]:
        return self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
