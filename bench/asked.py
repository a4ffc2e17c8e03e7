"""Windows that another process measures when it is asked: a seed on its input, a figure on its output, a line each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.children import END_SECONDS, ROOT, SOURCES
from bench.errors import BenchError
from bench.hashes import PYTHON_HASH_SEED

# Waiting threads sleep, as they do in our engine: on two cores that others use too, that is the faster way for all.
_PINNED = {"PYTHONHASHSEED": PYTHON_HASH_SEED, "OMP_WAIT_POLICY": "PASSIVE"}

Asked = Callable[[int], float]
"""The figure of the window with this seed."""


@contextmanager
def asking(module: str, *arguments: str, log: Path) -> Iterator[tuple[Asked, str]]:
    """Run `python -m module`; yields what asks it for a window and what it said of itself once it was ready.

    Raises `BenchError` if it ends; `log` is its standard error.
    """
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, SOURCES)), **_PINNED},
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    sent, answered = process.stdin, process.stdout

    def answer() -> str:
        line = answered.readline()
        if not line:
            # It closes its output first, and says its last words after that.
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            raise BenchError(f"{module} ended: {' '.join(log.read_text().split()[-40:])}")
        return line

    def window(seed: int) -> float:
        sent.write(f"{seed}\n")
        sent.flush()
        return float(answer())

    try:
        yield window, str(json.loads(answer()))
    finally:
        sent.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        answered.close()


def answering(said: str, window: Asked) -> None:
    """The other end: say what is measured, then a figure for each seed until the input ends.

    Whatever else is printed goes to standard error.
    """
    with os.fdopen(os.dup(1), "w", buffering=1) as line:
        os.dup2(2, 1)
        line.write(json.dumps(said) + "\n")
        for seed in sys.stdin:
            line.write(f"{window(int(seed))}\n")
