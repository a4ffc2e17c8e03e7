"""Child processes that write ledgers, and a file system that is soon full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts `python -m tests.ledger.children NAME ARGS...` and ends it after the test. Waits for its first line.

    `module` names another module of this folder to run instead.
    """
    children: list[subprocess.Popen[str]] = []

    def start(
        name: str, *arguments: object, ready: str | None = "ready", module: str = "children"
    ) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", f"tests.ledger.{module}", name, *map(str, arguments)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "engine", ROOT / "agent", ROOT)))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        if ready is not None:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line == f"{ready}\n", f"{name} said {line!r}"
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def tiny_tmpfs(memory: Path) -> Iterator[Path]:
    """A tmpfs of one megabyte."""
    mounted = memory / "tiny"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=2750", "kvledger-test", str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)
