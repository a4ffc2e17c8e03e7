"""What a measurement in a process of its own answers: windows by name and facts, a line of JSON after its progress.

Both ends of that conversation; what is measured is the rows' own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from bench.children import ROOT, SOURCES
from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import Windows
from bench.hashes import PYTHON_HASH_SEED

_PINNED = {
    "PYTHONHASHSEED": PYTHON_HASH_SEED,
    "PYTHONPATH": os.pathsep.join(map(str, SOURCES)),
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Figures by name, float[windows] each, and counts of the run."""

    figures: dict[str, Windows]
    facts: tuple[str, ...]


Measure = Callable[[Effort], Answer]


def ask(module: str, effort: Effort, *, python: Path | None = None) -> Answer:
    """Run `python -m module` and pass its progress on. Raises `BenchError` if it ends without an answer."""
    flags = ["--quick"] * effort.quick + ["--whole"] * effort.whole
    with tempfile.TemporaryFile("w+") as errors, _started(module, flags, python, errors) as process:
        assert process.stdout is not None
        answer: dict[str, Any] | None = None
        for line in process.stdout:
            said = json.loads(line)
            if "done" in said:
                effort.on_progress(said["done"], said["total"])
            else:
                answer = said
        code = process.wait()
        errors.seek(0)
        why = " ".join(errors.read().split()[-40:])
    if code or answer is None:
        raise BenchError(f"{module} ended with exit code {code} and {'an' if answer else 'no'} answer: {why}")
    return Answer({name: np.array(values) for name, values in answer["figures"].items()}, tuple(answer["facts"]))


@contextmanager
def _started(module: str, flags: list[str], python: Path | None, errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [str(python or sys.executable), "-m", module, *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=ROOT,
        env={**os.environ, **_PINNED},
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def answering(measure: Measure, arguments: list[str] | None = None) -> None:
    """The other end: measure, say how far it is, and answer. Whatever else is printed goes to standard error."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args(arguments)
    with os.fdopen(os.dup(1), "w", buffering=1) as line:
        os.dup2(2, 1)

        def say(document: dict[str, Any]) -> None:
            line.write(json.dumps(document, allow_nan=False) + "\n")

        effort = Effort(
            quick=args.quick, whole=args.whole, on_progress=lambda done, total: say({"done": done, "total": total})
        )
        found = measure(effort)
        figures = {name: values.tolist() for name, values in found.figures.items()}
        say({"figures": figures, "facts": list(found.facts)})
