"""Children that write ledgers, and the flag that rewrites golden files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "engine", ROOT / "agent", ROOT)))}
Spawn = Callable[..., "subprocess.Popen[str]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden` rewrites the golden files instead of comparing with them."""
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files from what the code gives now")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite golden files: the flag, where this folder was named, or UPDATE_GOLDEN=1."""
    return bool(request.config.getoption("--update-golden", default=False)) or os.environ.get("UPDATE_GOLDEN") == "1"


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts `python -m MODULE ARGS...`, waits for its first line, and ends it after the test."""
    children: list[subprocess.Popen[str]] = []

    def start(module: str, *arguments: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline(), f"{module} {arguments} ended before it was ready"
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
