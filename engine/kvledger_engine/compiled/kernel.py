"""Kernels: functions compiled ahead of their first call for one signature, and kept on disk.

Owns where compiled code is kept. Machine code is kept by the version of numba and of this package's own sources: numba
itself looks at the file of a function only, not at the files of those that it calls.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numba
from llvmlite.binding import get_host_cpu_name
from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent
_MODULES = tuple(sorted(path.stem for path in _PACKAGE.glob("*.py") if not path.stem.startswith("_")))
_COMPLETE = f"complete-{get_host_cpu_name()}"
_lock = threading.Lock()
_kernels: list[tuple[Any, str]] = []
_prepared = False


def _directory() -> Path:
    """Where the code of these sources by this numba is kept: in $NUMBA_CACHE_DIR, beside the sources, or at home."""
    digest = hashlib.blake2b(digest_size=6)
    for module in _MODULES:
        digest.update((_PACKAGE / f"{module}.py").read_bytes())
    name = f"kernels-numba-{numba.__version__}-{digest.hexdigest()}"
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(named) / name
    beside = _PACKAGE / "__pycache__" / name
    if (beside / _COMPLETE).exists() or os.access(_PACKAGE, os.W_OK):
        return beside
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    cache = Path(home) / ".cache" if home and os.access(home, os.W_OK) else Path(tempfile.gettempdir())
    return cache / f"kvledger-{os.getuid()}" / name


DIRECTORY = _directory()


def _cached(function: Callable[..., Any]) -> Any:
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(DIRECTORY)
    try:
        return njit(cache=True, error_model="numpy")(function)
    finally:
        numba.config.CACHE_DIR = before


def helper(function: Function) -> Function:
    """A function that becomes part of the kernels that call it; Python never does."""
    compiled: Function = njit(error_model="numpy", forceinline=True)(function)
    return compiled


def aside(function: Function) -> Function:
    """As `helper`, for what is rarely called and would only be in the way of the rest."""
    compiled: Function = njit(error_model="numpy")(function)
    return compiled


def kernel(signature: str) -> Callable[[Function], Function]:
    """A function with one numba signature, such as `int64(i8[::1])`; other types are a TypeError."""

    def build(function: Function) -> Function:
        if numba.config.DISABLE_JIT:
            return function
        compiled: Function = _cached(function)
        _kernels.append((compiled, signature))
        return compiled

    return build


def prepare() -> None:
    """Load every kernel, compiling those that are not on disk yet, which takes a minute and is said on stderr."""
    global _prepared
    with _lock:
        if not _prepared:
            for module in _MODULES:
                import_module(f"{__package__}.{module}")
            if (DIRECTORY / _COMPLETE).exists() or not _kernels:
                _load()
            else:
                _compile()
        _prepared = True


def _load() -> None:
    for compiled, signature in _kernels:
        compiled.compile(signature)
        compiled.disable_compile()


def _compile() -> None:
    """One process compiles; others that come meanwhile wait for it, and load."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    with (DIRECTORY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        complete, began = DIRECTORY / _COMPLETE, time.monotonic()
        if complete.exists():
            _load()
            return
        print(f"compiling {len(_kernels)} kernels, once on this machine (half a minute or more)", file=sys.stderr)
        _load()
        complete.touch()
        print(f"compiled in {time.monotonic() - began:.0f} s, kept in {DIRECTORY}", file=sys.stderr)
