"""The mirror's process as the engine core sees it: started, looked after, awaited. It outlives no engine core for long.

It is nobody's child: vLLM may kill its engine core with all children at once, and what the core has said last is to be
in the ledger then. Both processes know of each other's end by a pidfd.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import kvledger
from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_vllm.channel import Sender
from kvledger_vllm.geometry import packed_limits

_FAILED = CONTROL_INDEX["instrument_failed"]
_LOOK_NS = 100_000_000
_LAUNCH_SECONDS = 30.0
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_LAUNCH = """
import os, sys
if pid := os.fork():
    print(pid, flush=True)
    os._exit(0)
os.dup2(2, 1)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Companion:
    """One such process, for a ledger that this process keeps and the channel of `sender`."""

    def __init__(self, ledger: Ledger, sender: Sender) -> None:
        self._ledger, self._sender, self._looked_ns = ledger, sender, 0
        core = os.pidfd_open(os.getpid())
        descriptors = ledger.descriptor, sender.memory, sender.bell, core
        numbers = map(str, (*descriptors, time.monotonic_ns()))
        try:
            launched = subprocess.run(
                [
                    *(sys.executable, "-I", "-S", "-c", _LAUNCH),
                    *("-m", "kvledger_vllm.process", *numbers, packed_limits(ledger.limits)),
                ],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=descriptors,
                # Not reached by what a terminal sends to the engine: it ends when the engine core has.
                start_new_session=True,
                check=True,
                timeout=_LAUNCH_SECONDS,
            )
        finally:
            os.close(core)
        self.pid = int(launched.stdout)
        """Its process id."""
        self._process = os.pidfd_open(self.pid)

    def ended(self, now_ns: int) -> str:
        """How it ended, "" while it lives; looks once in a while only. Monotonic nanoseconds."""
        if now_ns - self._looked_ns < _LOOK_NS:
            return ""
        self._looked_ns = now_ns
        if not self._has_ended(0):
            return ""
        if self._ledger.control[_FAILED]:
            return f"and said: {bytes(self._ledger.instrument.failure[0]).decode(errors='replace')}"
        return "without a word"

    def await_applied(self, seconds: float) -> bool:
        """Wait until everything that was sent is applied; False where it was not within the time, or never will be."""
        deadline = time.monotonic() + seconds
        if not self._has_ended(0):
            self._sender.ring()
        while self._sender.applied < self._sender.sent:
            if self._has_ended(0) or time.monotonic() > deadline:
                return self._sender.applied >= self._sender.sent
            time.sleep(0.0002)
        return True

    def end(self, seconds: float) -> None:
        """See to its end: it is given the time to end by itself. Idempotent."""
        if self._process < 0:
            return
        if not self._has_ended(seconds):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self._has_ended(seconds)
        os.close(self._process)
        self._process = -1
        self._sender.close()

    def _has_ended(self, seconds: float) -> bool:
        return self._process < 0 or bool(select.select([self._process], [], [], seconds)[0])


def _environment() -> dict[str, str]:
    """This process's, and where to find what it has imported of ours. One thread: the engine's are the machine's."""
    places = dict.fromkeys(str(Path(file).resolve().parents[1]) for file in (str(kvledger.__file__), __file__))
    path = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONPATH": path}
