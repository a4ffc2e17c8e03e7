"""The mirror's process as the engine core sees it: started, looked after, awaited. It outlives no engine core for long.

It is nobody's child: vLLM may kill its engine core with all children at once, and what the core has said last is to be
in the ledger then. Both processes know of each other's end by a pidfd.
"""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import time
from pathlib import Path

import kvledger
from kvledger.layout import CONTROL_INDEX
from kvledger.writer import Ledger
from kvledger_vllm import kernel
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
        self._ledger, self._sender, self._looked_ns, self._left = ledger, sender, 0, 0
        try:
            self.pid = _launch(ledger, sender)
            """Its process id."""
            self._process = kernel.process(self.pid)
        except BaseException:
            # A process that was launched all the same finds nothing to do, and ends with the core.
            sender.close()
            raise

    def ended(self, now_ns: int, *, surely: bool) -> str:
        """How it ended, "" while it lives; looks once in a while, or `surely` now. Monotonic nanoseconds."""
        if not surely and now_ns - self._looked_ns < _LOOK_NS:
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
        while self.missing:
            if self._has_ended(0) or time.monotonic() > deadline:
                return not self.missing
            time.sleep(0.0002)
        return True

    def end(self, seconds: float) -> None:
        """See to its end: it is given the time to end by itself. Idempotent."""
        if self._process < 0:
            return
        if not self._has_ended(seconds):
            kernel.signal(self._process, signal.SIGKILL)
            self._has_ended(seconds)
        self._left = self.missing
        os.close(self._process)
        self._process = -1
        self._sender.close()

    @property
    def missing(self) -> int:
        """Messages that were sent and are not applied."""
        return self._left if self._process < 0 else self._sender.sent - self._sender.applied

    def _has_ended(self, seconds: float) -> bool:
        return self._process < 0 or kernel.ready(seconds, self._process)


def _launch(ledger: Ledger, sender: Sender) -> int:
    """Start it beside this process. Its process id."""
    core = kernel.process(os.getpid())
    descriptors = ledger.descriptor, sender.memory, sender.bell, core
    numbers = map(str, (*descriptors, time.monotonic_ns()))
    try:
        launched = subprocess.run(
            [
                *(sys.executable, "-I", "-S", "-c", _LAUNCH),
                # Nothing is imported from the directory that the engine happens to run in.
                *("-P", "-m", "kvledger_vllm.process", *numbers, packed_limits(ledger.limits)),
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
    return int(launched.stdout)


def _environment() -> dict[str, str]:
    """This process's, and where to find what it has imported of ours. One thread: the engine's are the machine's."""
    places = dict.fromkeys(str(Path(file).resolve().parents[1]) for file in (str(kvledger.__file__), __file__))
    # What is installed is found by itself, and there before Python's own modules it could hide some of them.
    beside = [place for place in places if place not in site.getsitepackages()]
    path = os.pathsep.join([*beside, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONPATH": path}
