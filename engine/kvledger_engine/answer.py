"""One generating request between its client and the core: its messages become a document or a stream of events.

Owns what has come of each sequence. Decides nothing but where a text ends; refusals and endings are the core's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from kvledger.words import CancelCause, FinishReason
from kvledger_engine import wire
from kvledger_engine.arrival import REQUEST_ID_HEADER
from kvledger_engine.body import Asked, Served
from kvledger_engine.bridge import Bridge, EngineGone, Inbox, Reply
from kvledger_engine.messages import Finished, Refused, Token
from kvledger_engine.output import Output, joined
from kvledger_engine.sse import DONE, ChunkWriter, usage_of
from kvledger_engine.wire import ApiError

SSE_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Answer:
    """The answer to one request whose messages come out of `inbox`."""

    def __init__(self, bridge: Bridge, inbox: Inbox, asked: Asked, served: Served) -> None:
        self._bridge, self._inbox, self._asked, self._served = bridge, inbox, asked, served
        self._created = int(time.time())
        self._ends: dict[int, Finished] = {}
        self._outputs = [Output(served.tokenizer, asked.stops, chat=asked.chat) for _ in range(asked.request.n)]

    async def give(self, http: web.Request) -> web.StreamResponse:
        """Answer the client. Raises `EngineGone` where nothing has been sent yet."""
        replies = await self._inbox.take()
        if (error := self._failure(replies[0])) is not None:
            return error_response(error)
        return await (self._stream(http, replies) if self._asked.stream else self._whole(replies))

    @property
    def _complete(self) -> bool:
        return len(self._ends) == self._asked.request.n

    def _failure(self, reply: Reply) -> ApiError | None:
        """The error that ends the whole request; None for a token, a proper end, and whatever follows a stop."""
        if isinstance(reply, Token):
            return None
        if isinstance(reply, Refused):
            return wire.refusal(reply)
        if self._outputs[reply.index].stopped:
            return None
        if self._inbox.aborted and reply.reason == FinishReason.CANCELLED.word:
            return wire.ABORTED
        return wire.failed_ending(reply.reason)

    def _feed(self, reply: Token) -> tuple[str, Any] | None:
        """What a token brings; None after a stop, when tokens that were under way may still come."""
        output = self._outputs[reply.index]
        brought = output.feed(reply)
        if brought is not None and output.stopped:
            self._bridge.stop(self._inbox, reply.index)
        return brought

    def _end(self, reply: Finished) -> tuple[str, str]:
        """The rest of a sequence's text, and how it ended for its client."""
        text, self._ends[reply.index] = self._outputs[reply.index].end(reply)
        return text, self._ends[reply.index].reason

    # -- whole ----------------------------------------------------------------------------------------------------

    async def _whole(self, replies: list[Reply]) -> web.Response:
        texts: list[list[str]] = [[] for _ in self._outputs]
        scores: list[list[Any]] = [[] for _ in self._outputs]
        while True:
            for reply in replies:
                if (error := self._failure(reply)) is not None:
                    self._bridge.close(self._inbox, CancelCause.API)
                    return error_response(error)
                if isinstance(reply, Finished):
                    texts[reply.index].append(self._end(reply)[0])
                elif isinstance(reply, Token) and (brought := self._feed(reply)) is not None:
                    texts[reply.index].append(brought[0])
                    scores[reply.index] += [] if brought[1] is None else [brought[1]]
            if self._complete:
                return json_response(self._document(texts, scores), self._headers)
            replies = await self._inbox.take()

    @property
    def _headers(self) -> Mapping[str, str]:
        return {REQUEST_ID_HEADER: self._asked.request.request_id}

    def _document(self, texts: list[list[str]], scores: list[list[Any]]) -> dict[str, object]:
        return {
            "id": self._asked.request.request_id,
            "object": "chat.completion" if self._asked.chat else "text_completion",
            "created": self._created,
            "model": self._served.model,
            "choices": [self._choice(index, "".join(text), joined(scores[index])) for index, text in enumerate(texts)],
            "usage": usage_of(list(self._ends.values())),
        }

    def _choice(self, index: int, text: str, scores: Any) -> dict[str, object]:
        said: dict[str, object] = {"text": text}
        if self._asked.chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        return {"index": index, **said, "logprobs": scores, "finish_reason": self._ends[index].reason}

    # -- streamed -------------------------------------------------------------------------------------------------

    async def _stream(self, http: web.Request, replies: list[Reply]) -> web.StreamResponse:
        """One write for all that one engine step brought."""
        request = self._asked.request
        writer = ChunkWriter(
            request_id=request.request_id,
            created=self._created,
            model=self._served.model,
            sequences=request.n,
            include_usage=self._asked.include_usage,
            chat=self._asked.chat,
        )
        response = web.StreamResponse(headers={**SSE_HEADERS, **self._headers})
        # A client that left between two writes: the caller cancels its request.
        with suppress(ConnectionError):
            await response.prepare(http)
            try:
                await self._follow(response, writer, replies)
            except EngineGone:
                await response.write(writer.error(gone(self._bridge)) + DONE)
        return response

    async def _follow(self, response: web.StreamResponse, writer: ChunkWriter, replies: list[Reply]) -> None:
        chunks = [writer.opening(index) for index in range(len(self._outputs))] if self._asked.chat else []
        while True:
            failed = self._events(writer, replies, chunks)
            ended = failed or self._complete
            if failed:
                self._bridge.close(self._inbox, CancelCause.API)
            elif ended and self._asked.include_usage:
                chunks.append(writer.usage(list(self._ends.values())))
            await response.write(b"".join([*chunks, DONE] if ended else chunks))
            if ended:
                return
            chunks = []
            replies = await self._inbox.take()

    def _events(self, writer: ChunkWriter, replies: list[Reply], chunks: list[bytes]) -> bool:
        """Add the events for `replies` to `chunks`; whether the last one is an error."""
        for reply in replies:
            if (error := self._failure(reply)) is not None:
                chunks.append(writer.error(error))
                return True
            if isinstance(reply, Finished):
                chunks.append(writer.finish(reply.index, *self._end(reply)))
            elif isinstance(reply, Token) and (brought := self._feed(reply)) is not None:
                chunks.append(writer.token(reply.index, *brought))
        return False


def gone(bridge: Bridge) -> ApiError:
    """What to say once the core is gone."""
    return wire.DRAINING if bridge.draining else wire.ENGINE_ERROR


def error_response(error: ApiError) -> web.Response:
    """An error as a response."""
    return web.Response(status=error.status, body=error.body, headers=error.headers, content_type="application/json")


def json_response(document: object, headers: Mapping[str, str] | None = None) -> web.Response:
    """A document as a response."""
    return web.Response(body=msgspec.json.encode(document), headers=headers, content_type="application/json")
