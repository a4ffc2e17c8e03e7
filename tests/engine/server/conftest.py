"""Engines for the server's tests: one that is shared, and a directory for those a test kills."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.engine.server.process import EngineProcess, engine

SHARED = ("--blocks", "256", "--max-model-len", "8192", "--max-num-seqs", "16", "--max-num-batched-tokens", "512")


@pytest.fixture
def directory() -> Iterator[Path]:
    """A ledger directory in memory, removed afterwards."""
    path = Path(mkdtemp(prefix="kvledger-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def shared() -> Iterator[EngineProcess]:
    """An engine for tests that leave it as they found it. Its context limit is larger than its pool."""
    path = Path(mkdtemp(prefix="kvledger-test-", dir="/dev/shm"))
    with engine(path, *SHARED) as process:
        yield process
        assert process.stop() == (0, "")
    shutil.rmtree(path)
