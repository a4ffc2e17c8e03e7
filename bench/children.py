"""Processes of a measurement that are no `kvledger` command: modules of this package, ended by closing their input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import BenchError

ROOT = Path(__file__).parents[1]
SOURCES = (ROOT / "engine", ROOT / "agent")
END_SECONDS = 20.0


@contextmanager
def module(name: str, *arguments: str) -> Iterator[dict[str, Any]]:
    """Run `python -m name`; yields the JSON object it prints once it is ready. Raises `BenchError` if it fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", name, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES))},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise BenchError(f"{name} ended with exit code {process.wait(END_SECONDS)} before it was ready")
        yield json.loads(line)
        if process.poll() is not None:
            raise BenchError(f"{name} ended with exit code {process.returncode} while it was measured")
    finally:
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
