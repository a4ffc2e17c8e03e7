"""Child processes that write ledgers, and a file system that is soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children import Child, Spawn, first_line, spawning


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts `python -m tests.ledger.children NAME ARGS...` and ends it after the test. Waits for its first line.

    `module` names another module of this folder to run instead.
    """
    with spawning() as start:

        def start_ready(name: str, *arguments: object, ready: str | None = "ready", module: str = "children") -> Child:
            child = start(f"tests.ledger.{module}", name, *arguments)
            if ready is not None:
                assert first_line(child) == f"{ready}\n"
            return child

        yield start_ready


@pytest.fixture
def tiny_tmpfs(memory: Path) -> Iterator[Path]:
    """A tmpfs of one megabyte."""
    mounted = memory / "tiny"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=2750", "kvledger-test", str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)
