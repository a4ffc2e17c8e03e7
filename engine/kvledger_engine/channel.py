"""The local socket between the HTTP process and the engine core: frames in both directions.

Owns framing and the bounds on memory; never what a message means. The core's end never blocks: what the socket does not
take stays in a queue whose size the core looks at.

ChannelError                a peer that does not keep to the framing: a bug or a foreign process, never a client's doing
├── FrameTooLong            a length beyond the bound of its direction
└── BadFrame                bytes that are not a list of the expected messages
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import msgspec

from kvledger_engine.errors import EngineError
from kvledger_engine.messages import FromCore, ToCore

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 64 << 20
"""Above the largest request body the HTTP side accepts: a token id takes no more bytes here than in JSON."""
RECEIVE_BYTES = 256 << 10

_ENCODER = msgspec.msgpack.Encoder()
M = TypeVar("M")


class ChannelError(EngineError):
    """The other end does not keep to the framing; the channel cannot be used any further."""


class FrameTooLong(ChannelError):
    """A frame is longer than its direction allows."""


class BadFrame(ChannelError):
    """A frame is not a list of the messages of its direction."""


def encode_frame(messages: Sequence[ToCore | FromCore], *, max_bytes: int = MAX_FRAME_BYTES) -> bytearray:
    """One frame. Raises `FrameTooLong` before anything is sent."""
    frame = bytearray(LENGTH_BYTES)
    _ENCODER.encode_into(messages, frame, LENGTH_BYTES)
    size = len(frame) - LENGTH_BYTES
    if size > max_bytes:
        raise FrameTooLong(f"a frame of {size:,} bytes exceeds {max_bytes:,}")
    frame[:LENGTH_BYTES] = size.to_bytes(LENGTH_BYTES, "little")
    return frame


class FrameReader(Generic[M]):
    """Turns received bytes into messages. Holds at most one frame that is not complete."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[list[M]], *, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._decoder, self._max_bytes = decoder, max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes | bytearray) -> Iterator[list[M]]:
        """The messages of every frame that `data` completes, a list a frame. Raises `FrameTooLong` or `BadFrame`."""
        self._buffer += data
        while (end := self._end()) <= len(self._buffer):
            payload = bytes(self._buffer[LENGTH_BYTES:end])
            del self._buffer[:end]
            yield self._decode(payload)

    def _end(self) -> int:
        """Bytes the frame at the front takes; more than there are while its length is not known."""
        if len(self._buffer) < LENGTH_BYTES:
            return LENGTH_BYTES
        size = int.from_bytes(self._buffer[:LENGTH_BYTES], "little")
        if size > self._max_bytes:
            raise FrameTooLong(f"the peer announces a frame of {size:,} bytes, more than {self._max_bytes:,}")
        return LENGTH_BYTES + size

    def _decode(self, payload: bytes) -> list[M]:
        try:
            return self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise BadFrame(f"a frame of {len(payload):,} bytes does not decode: {error}") from error


def reader_of_core(*, max_bytes: int = MAX_FRAME_BYTES) -> FrameReader[FromCore]:
    """A reader of what the core sends."""
    return FrameReader(msgspec.msgpack.Decoder(list[FromCore]), max_bytes=max_bytes)


def reader_of_http(*, max_bytes: int = MAX_FRAME_BYTES) -> FrameReader[ToCore]:
    """A reader of what the HTTP process sends."""
    return FrameReader(msgspec.msgpack.Decoder(list[ToCore]), max_bytes=max_bytes)


class CoreChannel:
    """The core's end. `send` queues and `receive` takes what has come; neither waits."""

    def __init__(self, sock: socket.socket) -> None:
        """Takes the socket over: `close` closes it."""
        sock.setblocking(False)
        self._socket, self._reader = sock, reader_of_http()
        self._queue = bytearray()
        self.closed = False
        """The other end is gone: nothing more will come, and what is sent is dropped."""

    def fileno(self) -> int:
        """For `select.poll`."""
        return self._socket.fileno()

    @property
    def queued_bytes(self) -> int:
        """Bytes the socket has not taken yet."""
        return len(self._queue)

    def receive(self) -> list[ToCore]:
        """Every message that has arrived, in order. Sets `closed` at the end of the stream. Raises `ChannelError`."""
        messages: list[ToCore] = []
        while data := self._read():
            for frame in self._reader.feed(data):
                messages += frame
            if len(data) < RECEIVE_BYTES:
                break
        return messages

    def send(self, messages: Sequence[FromCore]) -> None:
        """One frame with `messages`, if there are any; bytes the socket does not take now are kept for `flush`."""
        if not messages or self.closed:
            return
        self._queue += encode_frame(messages)
        self.flush()

    def flush(self) -> None:
        """Offer the queue to the socket, once."""
        if not self._queue or self.closed:
            return
        try:
            del self._queue[: self._socket.send(self._queue)]
        except BlockingIOError:
            return
        except OSError:
            self._lose()

    def flush_within(self, seconds: float) -> bool:
        """Wait until the queue is empty, at most so long; for the last frames before an end. False if it is not."""
        poll, deadline = select.poll(), time.monotonic() + seconds
        poll.register(self._socket, select.POLLOUT)
        while self._queue and (left := deadline - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.flush()
        return not self._queue

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._lose()
        self._socket.close()

    def _read(self) -> bytes:
        if self.closed:
            return b""
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._lose()
        return data

    def _lose(self) -> None:
        self.closed = True
        self._queue.clear()
