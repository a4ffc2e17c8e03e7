"""Engines for the server's tests: one that is shared, and a directory for those a test kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.engine.server.process import EngineProcess, engine

SHARED = ("--blocks", "256", "--max-model-len", "8192", "--max-num-seqs", "16", "--max-num-batched-tokens", "512")


def in_memory() -> TemporaryDirectory[str]:
    """A directory on tmpfs, removed whatever happens."""
    return TemporaryDirectory(prefix="kvledger-test-", dir="/dev/shm")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A ledger directory in memory."""
    with in_memory() as path:
        yield Path(path)


@pytest.fixture(scope="module")
def shared_by_module() -> Iterator[EngineProcess]:
    """The engine behind `shared`, which is what tests ask for."""
    with in_memory() as path, engine(Path(path), *SHARED) as process:
        yield process
        assert process.stop() == (0, "")


@pytest.fixture
def shared(shared_by_module: EngineProcess) -> Iterator[EngineProcess]:
    """An engine for tests that leave it as they found it: not a block is lost. Its context is larger than its pool."""
    yield shared_by_module
    shared_by_module.assert_nothing_lost()
