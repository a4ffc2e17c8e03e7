"""Fixtures of the tests against the real vLLM: one model for the session, ledgers on tmpfs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.children import memory_directory
from tests.vllm.conductor import Conductor
from tests.vllm.model import save_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint directory."""
    directory = tmp_path_factory.mktemp("model")
    save_tiny_llama(directory)
    return directory


@pytest.fixture(scope="module")
def ledger_directory() -> Iterator[Path]:
    """An empty directory on tmpfs, where ledgers belong."""
    with memory_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def conductor() -> Iterator[Conductor]:
    """Who lets a server's engine core go on step by step."""
    with closing(Conductor()) as conductor:
        yield conductor
