"""`kvledger engine` as a person starts it: the real command, its two processes, its HTTP and its ledger."""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any

from kvledger import invariants
from kvledger.reader import Reader
from kvledger.snapshot import Sample

ROOT = Path(__file__).parents[3]
DEADLINE_SECONDS = 20.0


@lru_cache
def environment() -> dict[str, str]:
    """Where the packages are. In a tree that is not installed, entry points are written out for the command to find."""
    paths = [str(ROOT / "engine"), str(ROOT / "agent")]
    try:
        metadata.distribution("kvledger")
    except metadata.PackageNotFoundError:
        paths.insert(0, _entry_points())
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "error"}


def _entry_points() -> str:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["kvledger.commands"]
    place = Path(mkdtemp(prefix="kvledger-commands-"))
    atexit.register(shutil.rmtree, place)
    info = place / "kvledger-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvledger\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in declared.items()]
    (info / "entry_points.txt").write_text("\n".join(["[kvledger.commands]", *lines, ""]))
    return str(place)


def command(*arguments: str) -> list[str]:
    """The command line of `kvledger engine`, with the cell model where no other is named."""
    return [sys.executable, "-m", "kvledger_agent", "engine", "--model", "cell", *arguments]


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait for something only a look at a file can tell; a ledger tells nobody that it changed."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS:.0f} s: {what}"
        time.sleep(0.01)


class EngineProcess:
    """One engine on a directory of its own, on a free port. Killed at the end if it has not been stopped."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self._process = subprocess.Popen(
            command("--directory", str(directory), "--port", "0", "--json", *arguments),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the engine did not start: {self._process.communicate()[1].decode()}")
        self.ready: dict[str, Any] = json.loads(line)
        self.url: str = self.ready["url"]
        self.core = Watched(self.ready["core_pid"])
        self._reader = Reader.open(Path(self.ready["ledger"]))

    def sample(self) -> Sample:
        """The ledger now."""
        return self._reader.sample()

    def gauge(self, name: str) -> float:
        """A published gauge."""
        value = self.sample().stats.gauge(name)
        assert value is not None
        return value

    def counter(self, name: str, **labels: str) -> float:
        """A counter of the ledger."""
        value = self.sample().stats.counter(name, **labels)
        assert value is not None
        return value

    def ended(self, reason: str) -> float:
        """Sequences that ended for a reason, of all tenants."""
        by_tenant = self.sample().stats.tenant_counter("requests_total", finish_reason=reason)
        assert by_tenant is not None
        return sum(by_tenant.values())

    def holds_nothing(self) -> bool:
        """No block is active and no request lives."""
        sample = self.sample()
        return sample.stats.gauge("active_blocks") == 0 and len(sample.slots) == 0

    def assert_nothing_lost(self) -> None:
        """Soon it is idle and holds nothing, every block is free or cached, and none contradicts another.

        The invariants are those that the agent judges by. Raises AssertionError with what does not hold.
        """
        eventually(lambda: self.holds_nothing() and self.gauge("idle") == 1, "the engine is idle and holds nothing")
        audit, sample = self._reader.audit(), self.sample()
        capacity, stats = sample.head.limits.capacity_blocks, sample.stats
        assert (stats.whole("active_blocks"), len(sample.slots), len(sample.pins)) == (0, 0, 0)
        assert stats.whole("free_blocks") + stats.whole("cached_blocks") == capacity
        assert invariants.suspects(audit) == []
        assert invariants.counts(sample, audit) == {}

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the HTTP process, which is the command itself."""
        self._process.send_signal(number)

    def wait(self) -> tuple[int, str]:
        """The exit code and all that was written to stderr."""
        _, stderr = self._process.communicate(timeout=DEADLINE_SECONDS)
        return self._process.returncode, stderr.decode()

    def stop(self) -> tuple[int, str]:
        """SIGTERM and wait."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()
            # The core has lost its parent and ends by itself; leaving it behind would be a failure of its own.
            assert self.core.ended_within(DEADLINE_SECONDS)
        self.core.close()


class Watched:
    """A process that is not our child, watched by a descriptor, so that its pid cannot mean another one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def ended_within(self, seconds: float) -> bool:
        """Whether it ends in time."""
        return bool(select.select([self._fd], [], [], seconds)[0])

    def kill(self) -> None:
        """SIGKILL."""
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Any signal."""
        signal.pidfd_send_signal(self._fd, number)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


@contextmanager
def engine(directory: Path, *arguments: str) -> Iterator[EngineProcess]:
    """A running engine."""
    with EngineProcess(directory, *arguments) as process:
        yield process
