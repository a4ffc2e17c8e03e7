"""The mirror's process as the engine core sees it: started, looked after, awaited. It outlives no engine core."""

from __future__ import annotations

import os
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
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Companion:
    """One such process, for a ledger that this process keeps and the channel of `sender`."""

    def __init__(self, ledger: Ledger, sender: Sender) -> None:
        self._ledger, self._sender, self._looked_ns = ledger, sender, 0
        descriptors = ledger.descriptor, sender.memory, sender.bell
        numbers = *descriptors, os.getpid(), time.monotonic_ns()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kvledger_vllm.process", *map(str, numbers), packed_limits(ledger.limits)],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            # Not reached by what a terminal sends to the engine: it ends when the engine core has.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ended(self, now_ns: int) -> str:
        """How it ended, "" while it lives; looks once in a while only. Monotonic nanoseconds."""
        if now_ns - self._looked_ns < _LOOK_NS:
            return ""
        self._looked_ns = now_ns
        code = self._process.poll()
        if code is None:
            return ""
        if self._ledger.control[_FAILED]:
            return f"and said: {bytes(self._ledger.instrument.failure[0]).decode(errors='replace')}"
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"

    def await_applied(self, seconds: float) -> bool:
        """Wait until everything that was sent is applied; False where it was not within the time, or never will be."""
        deadline = time.monotonic() + seconds
        while self._sender.applied < self._sender.sent:
            if self._process.poll() is not None or time.monotonic() > deadline:
                return self._sender.applied >= self._sender.sent
            time.sleep(0.0002)
        return True

    def end(self, seconds: float) -> None:
        """See to its end: it is given the time to end by itself."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._sender.close()


def _environment() -> dict[str, str]:
    """This process's, and where to find what it has imported of ours. One thread: the engine's are the machine's."""
    places = dict.fromkeys(str(Path(file).resolve().parents[1]) for file in (str(kvledger.__file__), __file__))
    path = os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONPATH": path}
