"""The HTTP side of the socket against a core played by the test: each request hears what is its own, and of the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvledger_engine.bridge import Bridge, EngineGone, EngineStartFailed
from kvledger_engine.channel import encode_frame, reader_of_http
from kvledger_engine.messages import (
    Cancel,
    Drain,
    Finished,
    FromCore,
    Hello,
    NewRequest,
    Refused,
    StartFailed,
    ToCore,
    Token,
    Tokens,
)

HELLO = Hello(engine="e", model="m", max_model_len_tokens=8, vocab_size=256, ledger_path="/p")


def request(request_id: str, n: int = 1) -> NewRequest:
    return NewRequest(request_id=request_id, prompt=[1], max_tokens=2, n=n)


def finished(request_id: str, index: int = 0) -> Finished:
    return Finished(request_id=request_id, index=index, reason="length", prompt_tokens=1, output_tokens=2, hit_tokens=0)


class Core:
    """The test's end of the socket."""

    def __init__(self) -> None:
        self.theirs, self._ours = socket.socketpair()
        self._ours.setblocking(False)
        self._reader = reader_of_http()
        self._got: list[ToCore] = []

    async def send(self, *messages: FromCore) -> None:
        await self.send_bytes(bytes(encode_frame(messages)))

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._ours, data)

    async def receive(self) -> ToCore:
        while not self._got:
            data = await asyncio.get_running_loop().sock_recv(self._ours, 1 << 16)
            assert data, "the bridge closed the socket"
            for frame in self._reader.feed(data):
                self._got += frame
        return self._got.pop(0)

    def die(self) -> None:
        self._ours.close()


def converse(conversation: Callable[[Core, Bridge], Awaitable[Any]], *greeting: FromCore) -> None:
    """Connect a bridge to a core that has sent its greeting, and talk."""

    async def run() -> None:
        core = Core()
        try:
            await core.send(*(greeting or (HELLO,)))
            bridge = await Bridge.connect(core.theirs)
            try:
                await conversation(core, bridge)
            finally:
                await bridge.disconnect()
        finally:
            core.die()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_each_request_hears_its_own_messages_in_order() -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        a, b = bridge.submit(request("a")), bridge.submit(request("b"))
        assert [await core.receive(), await core.receive()] == [request("a"), request("b")]
        await core.send(Tokens(["a", "b", "a", "nobody"], [0] * 4, [1, 2, 3, 9]))
        assert await a.take() == [Token("a", 0, 1), Token("a", 0, 3)]
        assert await b.take() == [Token("b", 0, 2)]
        await core.send(finished("a"))
        assert await a.take() == [finished("a")]
        assert (bridge.is_open("a"), bridge.is_open("b")) == (False, True)

    converse(conversation)


def test_a_request_of_several_sequences_is_open_until_the_last_one_ends() -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        inbox = bridge.submit(request("a", n=2))
        await core.send(finished("a", 1))
        await inbox.take()
        assert bridge.is_open("a")
        await core.send(finished("a", 0))
        await inbox.take()
        assert not bridge.is_open("a")

    converse(conversation)


def test_closing_an_open_request_cancels_it_and_closing_an_ended_one_does_not() -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        a, b = bridge.submit(request("a")), bridge.submit(request("b"))
        await core.send(Refused(request_id="a", reason="queue_full", advice="later", retryable=True))
        await a.take()
        bridge.close(a)
        bridge.close(b)
        bridge.close(b)
        bridge.drain()
        assert [await core.receive(), await core.receive()] == [request("a"), request("b")]
        cancel = await core.receive()
        assert isinstance(cancel, Cancel)
        assert (cancel.request_ids, cancel.cause) == (["b"], "disconnect")
        assert cancel.since_ns > 0
        assert await core.receive() == Drain()

    converse(conversation)


def test_cancel_all_names_every_open_request() -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        for name in "abc":
            bridge.submit(request(name))
            await core.receive()
        bridge.cancel_all()
        cancel = await core.receive()
        assert isinstance(cancel, Cancel)
        assert (cancel.request_ids, cancel.cause) == (["a", "b", "c"], "api")
        assert all(map(bridge.is_open, "abc"))

    converse(conversation)


def test_a_dead_core_is_told_to_open_requests_after_what_came_before_and_to_later_ones_at_once() -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        inbox = bridge.submit(request("a"))
        await core.receive()
        await core.send(Tokens(["a"], [0], [1]))
        core.die()
        await bridge.ended.wait()
        assert await inbox.take() == [Token("a", 0, 1)]
        with pytest.raises(EngineGone):
            await inbox.take()
        with pytest.raises(EngineGone):
            bridge.submit(request("b"))
        bridge.close(inbox)
        bridge.drain()
        bridge.cancel_all()
        assert not bridge.is_open("a")

    converse(conversation)


def test_a_request_that_waits_wakes_when_the_core_dies() -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        waiting = asyncio.create_task(bridge.submit(request("a")).take())
        await core.receive()
        core.die()
        with pytest.raises(EngineGone):
            await waiting

    converse(conversation)


def test_a_core_that_breaks_the_framing_counts_as_dead(caplog: pytest.LogCaptureFixture) -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        inbox = bridge.submit(request("a"))
        await core.receive()
        await core.send_bytes(b"\x01\x00\x00\x00\xc1")
        with pytest.raises(EngineGone):
            await inbox.take()
        assert bridge.ended.is_set()

    converse(conversation)
    assert "channel=core state=broken" in caplog.text


def test_a_core_that_reads_nothing_gets_no_further_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvledger_engine.bridge.MAX_UNSENT_BYTES", 1 << 20)

    async def conversation(core: Core, bridge: Bridge) -> None:
        large = [1] * (4 << 20)
        bridge.submit(NewRequest(request_id="a", prompt=large, max_tokens=1))
        with pytest.raises(EngineGone, match="stopped or stuck"):
            bridge.submit(request("b"))
        assert (bridge.is_open("a"), bridge.is_open("b")) == (True, False)

    converse(conversation)


def test_a_core_that_cannot_start_says_why() -> None:
    async def conversation(core: Core, bridge: Bridge) -> None:
        raise AssertionError("connected")

    with pytest.raises(EngineStartFailed, match="no room"):
        converse(conversation, StartFailed("no room"))


def test_a_core_that_ends_without_a_word_is_a_failed_start() -> None:
    async def run() -> None:
        core = Core()
        core.die()
        with pytest.raises(EngineStartFailed, match="ended before it was ready"):
            await Bridge.connect(core.theirs)

    asyncio.run(run())
