"""Rest between windows: it is waited for, and who never rests is named."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.errors import BenchError
from bench.rest import await_rest


@contextmanager
def python(code: str) -> Iterator[subprocess.Popen[str]]:
    """A child that has begun what `code` says behind its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True)\n{code}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            yield child
        finally:
            child.kill()


def test_children_that_wait_are_at_rest() -> None:
    with python("input()"):
        await_rest()


def test_rest_begins_when_the_spinning_ends() -> None:
    with python("import time\nwhile time.process_time() < 0.6: pass\nprint(flush=True)\ninput()") as child:
        await_rest()
        assert child.stdout is not None
        assert child.stdout.readline() == "\n", "it has said that it spins no more"


def test_a_child_that_never_rests_is_named() -> None:
    with python("while True: pass") as child, pytest.raises(BenchError, match=f"process {child.pid} computes though"):
        await_rest(within_seconds=0.5)
