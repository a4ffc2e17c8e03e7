"""What the agent's own process uses, from the kernel, and which versions it runs."""

from __future__ import annotations

import os
import platform
import resource
from functools import cache
from importlib import metadata
from pathlib import Path

_STATM = Path("/proc/self/statm")


def cpu_seconds() -> float:
    """Processor time of this process, user and system, threads included."""
    times = os.times()
    return times.user + times.system


def memory_bytes() -> int:
    """Resident memory of this process."""
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


@cache
def versions() -> tuple[str, str]:
    """(version of kvledger or `unknown`, version of Python)."""
    try:
        own = metadata.version("kvledger")
    except metadata.PackageNotFoundError:
        own = "unknown"
    return own, platform.python_version()
