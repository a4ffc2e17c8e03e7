"""A real agent beside real engines, and the explorer's pages run against it."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvledger_agent.client import AgentClient, ClientError
from kvledger_dashboards.explorer.settings import AGENT_VARIABLE
from tests.children import Child, first_line, memory_directory, running

READY_SECONDS = 30.0


@pytest.fixture(autouse=True)
def main_stays_main() -> Iterator[None]:
    """Streamlit's AppTest puts the page in the place of `__main__`; whatever is spawned later would run it."""
    before = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = before


@contextmanager
def child(module: str, *arguments: object, **variables: str) -> Iterator[tuple[Child, str]]:
    """`python -m MODULE ARGS` and its first line; killed at the end, if it hasn't ended."""
    with running(module, *arguments, **variables) as process:
        yield process, first_line(process)


@contextmanager
def engine(kind: str, directory: Path) -> Iterator[Child]:
    """An engine of `tests.explorer.children`."""
    with child("tests.explorer.children", kind, directory) as (process, _):
        yield process


@contextmanager
def agent(directory: Path, *arguments: object) -> Iterator[AgentClient]:
    """An agent on a free port, once it has its first sample."""
    with child("kvledger_agent", "agent", "--directory", directory, "--port", 0, "--json", *arguments) as (_, line):
        client = AgentClient(json.loads(line)["url"])
        until(lambda: client.get("/readyz"), "the agent's first sample")
        yield client


def until(true: Callable[[], Any], what: str, seconds: float = READY_SECONDS) -> Any:
    """Wait until `true` gives something, which it returns; an agent that does not answer yet is waited for."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found := true():
                return found
        except ClientError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come within {seconds:.0f} s")


@pytest.fixture(scope="module")
def fleet() -> Iterator[AgentClient]:
    """An agent that watches an engine under pressure and one that leaks, once the leak is a finding."""
    with (
        memory_directory() as directory,
        engine("pressed", directory),
        engine("leaking", directory),
        agent(directory) as client,
    ):
        until(lambda: client.snapshot("leaking")["findings"], "the leak")
        yield client


@pytest.fixture
def point_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[AgentClient], None]:
    """Makes pages that are run in this process ask this agent."""
    return lambda client: monkeypatch.setenv(AGENT_VARIABLE, client.url)


@pytest.fixture
def free_address() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
