"""What the instrument is attached to in these tests: a scheduler that looks like vLLM's, and a place for ledgers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.children import memory_directory
from tests.vllm_plugin.fakes import Scheduler


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory on tmpfs, where ledgers belong."""
    with memory_directory() as directory:
        yield directory


@pytest.fixture
def scheduler() -> Scheduler:
    """One without requests."""
    return Scheduler()
