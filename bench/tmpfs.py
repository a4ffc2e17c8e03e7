"""A directory on tmpfs for the ledgers of one measurement, gone afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.errors import BenchError

TMPFS = Path("/dev/shm")


@contextmanager
def ledger_directory() -> Iterator[Path]:
    """The directory. Raises `BenchError` where there is no tmpfs to write to: ledgers live there."""
    if not os.access(TMPFS, os.W_OK):
        raise BenchError(f"{TMPFS} is not writable: ledgers are measured on tmpfs, mount one there")
    directory = Path(tempfile.mkdtemp(prefix="kvledger-bench-", dir=TMPFS))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
