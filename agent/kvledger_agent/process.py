"""What the agent's own process uses, from the kernel, and which version of ours it runs."""

from __future__ import annotations

import os
import resource
from functools import cache
from importlib import metadata
from pathlib import Path

from kvledger_agent.extras import DISTRIBUTION

_STATM = Path("/proc/self/statm")


def cpu_seconds() -> float:
    """Processor time of this process, user and system, threads included."""
    times = os.times()
    return times.user + times.system


def memory_bytes() -> int:
    """Resident memory of this process."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


@cache
def version() -> str:
    """The installed version of kvledger, or `unknown` in a source tree that is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"
