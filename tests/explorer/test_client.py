"""The agent's client: what it says of an agent that is away, slow, endless, foreign or in trouble."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvledger_agent.client import (
    AgentClient,
    AgentUnreachable,
    BadAnswer,
    EngineUnreadable,
    UnknownEngine,
    check_url,
)
from kvledger_agent.errors import UsageError
from tests.explorer.conftest import agent

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"


@contextmanager
def peer(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that takes one connection, reads the question and behaves as told."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                try:
                    behave(connection)
                except OSError:
                    return  # the client has had enough

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(10)


def trickle(connection: socket.socket) -> None:
    """A byte now and then, for ever: no single read ever times out."""
    connection.sendall(OK)
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def flood(connection: socket.socket) -> None:
    """More than anybody asked for."""
    connection.sendall(OK)
    while True:
        connection.sendall(b" " * 65536)


def test_an_agent_that_is_away_is_unreachable_with_its_address(free_address: str) -> None:
    with pytest.raises(AgentUnreachable, match=free_address):
        AgentClient(free_address).engines()


def test_an_answer_that_trickles_is_given_up_in_time() -> None:
    with peer(trickle) as url:
        began = time.monotonic()
        with pytest.raises(AgentUnreachable, match=r"within 0\.4 s"):
            AgentClient(url, timeout_seconds=0.4).engines()
        assert time.monotonic() - began < 3


def test_an_agent_that_says_nothing_is_given_up_in_time() -> None:
    released = threading.Event()

    def wait(_: socket.socket) -> None:
        released.wait(10)

    with peer(wait) as url:
        try:
            with pytest.raises(AgentUnreachable):
                AgentClient(url, timeout_seconds=0.3).engines()
        finally:
            released.set()


def test_an_endless_answer_is_cut_at_the_limit() -> None:
    with peer(flood) as url, pytest.raises(BadAnswer, match="more than 100,000 bytes"):
        AgentClient(url, max_bytes=100_000).engines()


@pytest.mark.parametrize(
    "body", [b"<html>", b"[1]", b"{}", b'{"engines": 3}', b"\xff\xfe", b'{"engines": ' + b"[" * 100_000]
)
def test_what_is_no_answer_of_an_agent_is_said_to_be_none(body: bytes) -> None:
    with peer(lambda connection: connection.sendall(OK + body)) as url, pytest.raises(BadAnswer):
        AgentClient(url).engines()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", b"SSH-2.0-x\r\n\r\n"])
def test_a_broken_connection_is_an_unreachable_agent(answer: bytes) -> None:
    with peer(lambda connection: connection.sendall(answer)) as url, pytest.raises((AgentUnreachable, BadAnswer)):
        AgentClient(url).engines()


def test_a_redirect_is_not_followed() -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 2\r\n\r\n{}"
    with peer(lambda connection: connection.sendall(answer)) as url, pytest.raises(BadAnswer, match="302"):
        AgentClient(url).engines()


@pytest.mark.parametrize("url", ["", "127.0.0.1:9470", "ftp://h", "http://", "http://h:99999", "http://["])
def test_what_is_no_address_is_refused_with_the_value(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_url(url)
    assert repr(url) in str(refused.value)


def test_an_address_with_a_password_is_refused_without_saying_it() -> None:
    with pytest.raises(UsageError, match="credentials") as refused:
        check_url("http://user:secret@h")
    assert "secret" not in str(refused.value)


@pytest.mark.needs("tmpfs")
def test_an_unknown_engine_and_an_unreadable_one_are_told_apart(memory: Path) -> None:
    (memory / "bad.0.00000001.kvledger").write_bytes(bytes(9000))
    with agent(memory) as client:
        with pytest.raises(UnknownEngine, match="nobody"):
            client.snapshot("nobody/../..?x#y")
        with pytest.raises(EngineUnreadable, match="KVLEDGER"):
            client.snapshot("bad")


@pytest.mark.needs("tmpfs")
@pytest.mark.slow
def test_every_block_comes_with_state_references_and_owner(fleet: AgentClient) -> None:
    blocks = fleet.blocks("pressed")
    assert blocks.capacity_blocks == len(blocks.state) == len(blocks.ref_count) == len(blocks.owner) == 1600
    active = blocks.state == blocks.states.index("active")
    assert active.any()
    assert (fleet.block("pressed", 0)["block"], len(blocks.states)) == (0, 3)
