"""Child processes of tests: modules of this repository, awaited by their first line, and ended with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("engine", "agent", "dashboards", "alerts", "")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in SOURCES)}
Child = subprocess.Popen[str]
Spawn = Callable[..., Child]
"""Starts a child that is ended after the test."""


@contextmanager
def running(module: str, *arguments: object, **variables: str) -> Iterator[Child]:
    """`python -m MODULE ARGS` with both its ends open; killed when this is left, if it has not ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=ROOT,
        env=ENVIRONMENT | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@contextmanager
def spawning() -> Iterator[Spawn]:
    """What starts children; all of them end when this is left."""
    with ExitStack() as children:
        yield lambda module, *arguments: children.enter_context(running(module, *arguments))


def first_line(child: Child) -> str:
    """What a child says once it is ready; fails where it ended without a word."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, f"{child.args!r} ended before it was ready"
    return line


def input_closed() -> threading.Event:
    """In a child: an event that is set once nobody writes to our input any more."""
    closed = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    return closed


@contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory on tmpfs, gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="kvledger-test-", dir="/dev/shm"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
