"""Where a run was made: processor, cores, versions, and how busy the machine was. Reads, never changes."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

_CPUINFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "Model", "Hardware")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts that go with every figure. `load_1m` is the load average when the run began."""

    cpu_model: str
    cores: int
    architecture: str
    kernel: str
    python: str
    numpy: str
    kvledger: str
    load_1m: float


def this_machine() -> Machine:
    """The machine this runs on, now."""
    return Machine(
        cpu_model=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        architecture=platform.machine(),
        kernel=platform.release().split("-")[0],
        python=platform.python_version(),
        numpy=np.__version__,
        kvledger=_version(),
        load_1m=os.getloadavg()[0],
    )


def _cpu_model() -> str:
    for line in _CPUINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in _NAMES and value.strip():
            return value.strip()
    return "unknown"


def _version() -> str:
    try:
        return metadata.version("kvledger")
    except metadata.PackageNotFoundError:
        return "unknown"
