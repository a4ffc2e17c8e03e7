"""`kvledger explorer` as a process: it serves on loopback, and says in one line why it cannot."""

from __future__ import annotations

import importlib.util
import json
import socket
import urllib.request

import pytest

from kvledger_agent.errors import MissingExtra, UsageError
from kvledger_dashboards.explorer import command, settings
from tests.explorer.conftest import child, until


def answers(url: str) -> bool:
    """Whether the server says that it is well."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.needs("streamlit")
def test_it_serves_on_loopback_and_its_process_is_the_server() -> None:
    arguments = ("explorer", "--port", 0, "--json", "--agent", "http://127.0.0.1:1")
    with child("tests.explorer.children", *arguments) as (process, line):
        announced = json.loads(line)
        assert announced["url"].startswith("http://127.0.0.1:")
        assert announced["pid"] == process.pid
        until(lambda: answers(announced["health"]), "the explorer")
        process.terminate()
        assert process.wait(20) in (0, -15)


def test_without_streamlit_it_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "streamlit" else found(name))
    with pytest.raises(MissingExtra, match=r"needs streamlit, .*pip install 'kvledger\[explorer\]'"):
        command.require_packages()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(command.PortTaken, match=str(port)):
            command.free_port("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused_with_the_value(port: int) -> None:
    with pytest.raises(UsageError, match=str(port)):
        command.free_port("127.0.0.1", port)


def test_the_agents_address_comes_from_the_environment() -> None:
    assert settings.agent_url({settings.AGENT_VARIABLE: "http://h:1/"}) == "http://h:1"
    assert settings.agent_url({}) == "http://127.0.0.1:9470"
    with pytest.raises(UsageError, match="nonsense"):
        settings.agent_url({settings.AGENT_VARIABLE: "nonsense"})
