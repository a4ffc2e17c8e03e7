"""The HTTP process's end of the core: requests go in, each one's messages come out of its own inbox.

Owns which requests are open and what becomes of them when the core dies. Decides nothing about a request: refusals come
from the core. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Sequence

from kvledger.words import CancelCause
from kvledger_engine.channel import ChannelError, encode_frame, reader_of_core
from kvledger_engine.errors import EngineError
from kvledger_engine.messages import (
    Cancel,
    Drain,
    Finished,
    FromCore,
    Hello,
    NewRequest,
    Refused,
    Stop,
    ToCore,
    Token,
    Tokens,
)

logger = logging.getLogger(__name__)

MAX_UNSENT_BYTES = 64 << 20
"""Beyond this a core does not read any more, and new requests are turned away rather than piled up."""

Reply = Token | Finished | Refused


class EngineGone(EngineError):
    """The core died, or takes nothing any more. Its clients get 503 `engine_error`."""


class EngineStartFailed(EngineError):
    """The core could not start; the message is one line for the user."""


class Inbox:
    """What the core says about one request. One task reads it; closed by `Bridge.close` in any case."""

    __slots__ = ("_gone", "_replies", "_waiter", "aborted", "request_id", "sequences_open", "tenant")

    def __init__(self, request: NewRequest) -> None:
        self.request_id, self.sequences_open, self.tenant = request.request_id, request.n, request.tenant
        self.aborted = False
        self._replies: list[Reply] = []
        self._waiter: asyncio.Future[None] | None = None
        self._gone = False

    async def take(self) -> list[Reply]:
        """Everything that has come since, at least one message. Raises `EngineGone` once nothing more can come."""
        while not self._replies:
            if self._gone:
                raise EngineGone("the engine core has ended")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        replies, self._replies = self._replies, []
        return replies

    def put(self, reply: Reply) -> None:
        """Keep a message and wake the reader. The core's frames are one step each, so a reader wakes once a step."""
        self._replies.append(reply)
        self._wake()

    def lose(self) -> None:
        """The core is gone: whoever reads learns it after the messages that did come."""
        self._gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Bridge(asyncio.Protocol):
    """The connection to one core. `ended` is set when the core is gone, and `lost` too if nobody asked it to go."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.draining = False
        self.lost = False
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._inboxes: dict[str, Inbox] = {}
        self._reader = reader_of_core()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, sock: socket.socket) -> Bridge:
        """Take over our end of the socketpair and wait until the core is ready. Raises `EngineStartFailed`."""
        sock.setblocking(False)
        _, bridge = await asyncio.get_running_loop().create_unix_connection(cls, sock=sock)
        try:
            await bridge._hello
        except BaseException:
            await bridge.disconnect()
            raise
        return bridge

    async def disconnect(self) -> None:
        """Close the connection, on which the core ends. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
        await self.ended.wait()

    @property
    def hello(self) -> Hello:
        """What the core said about itself when it was ready."""
        return self._hello.result()

    def is_open(self, request_id: str) -> bool:
        """Whether a request of this id is still open."""
        return request_id in self._inboxes

    def submit(self, request: NewRequest) -> Inbox:
        """Send a request whose id is not open; `close` its inbox when done, whatever happened. Raises `EngineGone`."""
        assert request.request_id not in self._inboxes, "a request id is used twice"
        if self._unsent_bytes() > MAX_UNSENT_BYTES:
            raise EngineGone("the engine core takes no requests: it is stopped or stuck")
        inbox = Inbox(request)
        self._send([request])
        self._inboxes[request.request_id] = inbox
        return inbox

    def close(self, inbox: Inbox, cause: CancelCause = CancelCause.DISCONNECT) -> None:
        """Forget a request. One that has not ended is cancelled: by default its client went away. Idempotent."""
        if self._inboxes.pop(inbox.request_id, None) is not None and not self.ended.is_set():
            self._send([_cancel([inbox.request_id], cause)])

    def stop(self, inbox: Inbox, index: int) -> None:
        """One sequence of a request has all its text: it ends as `stop`. Does nothing where the request has ended."""
        if inbox.request_id in self._inboxes and not self.ended.is_set():
            self._send([Stop(request_id=inbox.request_id, index=index, since_ns=time.monotonic_ns())])

    def abort(self, request_id: str, tenant: str | None) -> bool:
        """Cancel an open request by command; its client is told. False if there is none, or not of this tenant."""
        inbox = self._inboxes.get(request_id)
        if inbox is None or tenant not in (None, inbox.tenant):
            return False
        inbox.aborted = True
        self._send([_cancel([request_id], CancelCause.API)])
        return True

    def drain(self) -> None:
        """Have the core refuse what is new and end when the rest has ended. `ended` tells when."""
        self.draining = True
        if not self.ended.is_set():
            self._send([Drain()])

    def cancel_all(self) -> None:
        """Cancel every open request by command; their clients are told."""
        if self._inboxes and not self.ended.is_set():
            self._send([_cancel(list(self._inboxes), CancelCause.API)])

    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _send(self, messages: Sequence[ToCore]) -> None:
        if self.ended.is_set() or self._transport is None:
            raise EngineGone("the engine core has ended")
        self._transport.write(encode_frame(messages))

    # -- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. A core that breaks the framing is as good as dead."""
        try:
            for frame in self._reader.feed(data):
                for message in frame:
                    self._dispatch(message)
        except ChannelError:
            logger.exception("channel=core state=broken")
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`. Every open request learns that its core is gone."""
        self.lost = not self.draining
        self.ended.set()
        if not self._hello.done():
            self._hello.set_exception(EngineStartFailed("the engine core ended before it was ready; its log says why"))
        for inbox in self._inboxes.values():
            inbox.lose()
        self._inboxes.clear()

    def _dispatch(self, message: FromCore) -> None:
        if isinstance(message, Tokens):
            for token in message.each():
                # Tokens of a request that has been forgotten are still under way when its client is gone.
                if (inbox := self._inboxes.get(token.request_id)) is not None:
                    inbox.put(token)
        elif isinstance(message, Finished | Refused):
            if (inbox := self._inboxes.get(message.request_id)) is not None:
                inbox.put(message)
                self._count_end(inbox, message)
        elif isinstance(message, Hello):
            self._hello.set_result(message)
        else:
            self._hello.set_exception(EngineStartFailed(message.message))

    def _count_end(self, inbox: Inbox, message: Finished | Refused) -> None:
        inbox.sequences_open -= 1
        if inbox.sequences_open <= 0 or isinstance(message, Refused):
            del self._inboxes[inbox.request_id]


def _cancel(request_ids: list[str], cause: CancelCause) -> Cancel:
    return Cancel(request_ids=request_ids, cause=cause.word, since_ns=time.monotonic_ns())
