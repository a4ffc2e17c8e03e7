"""Children that write ledgers, and the flag that rewrites golden files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.children import Child, Spawn, first_line, spawning


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
    with spawning() as start:

        def start_ready(module: str, *arguments: object) -> Child:
            child = start(module, *arguments)
            first_line(child)
            return child

        yield start_ready
