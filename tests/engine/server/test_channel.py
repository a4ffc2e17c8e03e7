"""Frames arrive whole and in order however the bytes are cut, and nothing a peer sends takes unbounded memory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_engine.channel import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    BadFrame,
    CoreChannel,
    FrameTooLong,
    encode_frame,
    reader_of_core,
    reader_of_http,
)
from kvledger_engine.messages import Cancel, Drain, Finished, FromCore, Hello, NewRequest, Refused, StartFailed, Tokens

HELLO = Hello(engine="e", model="m", max_model_len_tokens=8, vocab_size=256, ledger_path="/p")
FINISHED = Finished(request_id="a", index=1, reason="stop", prompt_tokens=3, output_tokens=4, hit_tokens=0)
REFUSED = Refused(request_id="b", reason="queue_full", advice="later", retryable=True)
FROM_CORE: list[FromCore] = [HELLO, StartFailed("no"), Tokens(["a"], [0], [7]), FINISHED, REFUSED]
REQUEST = NewRequest(request_id="a", prompt=[1, 2], max_tokens=3)


@pytest.fixture
def pair() -> Iterator[tuple[CoreChannel, socket.socket]]:
    """The core's channel and the bare socket of its peer."""
    ours, theirs = socket.socketpair()
    channel = CoreChannel(ours)
    with theirs:
        yield channel, theirs
    channel.close()


@given(
    frames=st.lists(st.lists(st.sampled_from(FROM_CORE), min_size=1), max_size=6),
    cuts=st.lists(st.integers(1, 40), min_size=1),
)
def test_messages_are_the_same_however_the_bytes_are_cut(frames: list[list[FromCore]], cuts: list[int]) -> None:
    data = b"".join(encode_frame(frame) for frame in frames)
    reader, found, position = reader_of_core(), [], 0
    while position < len(data):
        size = cuts[position % len(cuts)]
        found += list(reader.feed(data[position : position + size]))
        position += size
    assert found == frames


def test_a_frame_longer_than_the_bound_is_refused_before_its_bytes_are_kept() -> None:
    announced = (MAX_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "little")
    with pytest.raises(FrameTooLong, match="67,108,865"):
        list(reader_of_http().feed(announced))
    with pytest.raises(FrameTooLong, match="exceeds 8"):
        encode_frame([REQUEST], max_bytes=8)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x00",
        msgspec.msgpack.encode([["token", "a", 0]]),
        bytes(encode_frame([REQUEST]))[LENGTH_BYTES:-1],
    ],
)
def test_bytes_that_are_no_messages_are_a_typed_error(payload: bytes) -> None:
    with pytest.raises(BadFrame, match=f"a frame of {len(payload)} bytes"):
        list(reader_of_core().feed(len(payload).to_bytes(LENGTH_BYTES, "little") + payload))


def test_each_direction_refuses_the_messages_of_the_other() -> None:
    with pytest.raises(BadFrame):
        list(reader_of_core().feed(encode_frame([REQUEST])))
    with pytest.raises(BadFrame):
        list(reader_of_http().feed(encode_frame([HELLO])))


def test_receive_takes_what_there_is_and_does_not_wait(pair: tuple[CoreChannel, socket.socket]) -> None:
    channel, peer = pair
    assert channel.receive() == []
    cancel = Cancel(request_ids=["a"], cause="disconnect")
    peer.sendall(encode_frame([REQUEST, cancel]) + encode_frame([Drain()])[:3])
    assert channel.receive() == [REQUEST, cancel]
    peer.sendall(encode_frame([Drain()])[3:])
    assert channel.receive() == [Drain()]
    assert not channel.closed


def test_messages_sent_before_the_end_of_the_stream_are_received(pair: tuple[CoreChannel, socket.socket]) -> None:
    channel, peer = pair
    peer.sendall(encode_frame([REQUEST]))
    peer.shutdown(socket.SHUT_WR)
    assert channel.receive() == [REQUEST]
    assert channel.receive() == []
    assert channel.closed


def test_a_peer_that_does_not_read_fills_a_queue_and_gets_all_of_it_later(
    pair: tuple[CoreChannel, socket.socket],
) -> None:
    channel, peer = pair
    frames = 0
    while channel.queued_bytes < 1 << 20:
        channel.send(FROM_CORE)
        frames += 1
    assert channel.flush_within(0.01) is False
    reader = reader_of_core()
    found: list[list[FromCore]] = []

    def read() -> None:
        while data := peer.recv(1 << 16):
            found.extend(reader.feed(data))

    reading = threading.Thread(target=read)
    reading.start()
    assert channel.flush_within(10) is True
    channel.close()
    reading.join()
    assert found == [FROM_CORE] * frames


def test_sending_to_a_peer_that_is_gone_closes_the_channel_and_keeps_nothing(
    pair: tuple[CoreChannel, socket.socket],
) -> None:
    channel, peer = pair
    peer.close()
    channel.send([HELLO])
    assert (channel.closed, channel.queued_bytes) == (True, 0)
    assert channel.flush_within(0) is True
