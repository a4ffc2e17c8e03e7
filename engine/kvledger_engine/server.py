"""The HTTP server: OpenAI completions over the bridge, with cancellation when a client goes away.

Owns connections and answers. Refusals are the core's; what is refused here for its form is sent there to be counted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
from aiohttp import web

from kvledger.words import CancelCause, RejectionReason
from kvledger_engine import completion, wire
from kvledger_engine.bridge import Bridge, EngineGone, Inbox, Reply
from kvledger_engine.completion import BadBody, Completion, Served
from kvledger_engine.messages import Finished, Refused, Token
from kvledger_engine.sse import DONE, ChunkWriter, usage_of
from kvledger_engine.tokenizer import Detokenizer, Tokenizer
from kvledger_engine.wire import ApiError

SSE_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class CompletionServer:
    """The routes over one bridge. Run its `app` with `handler_cancellation=True`, or disconnects go unseen."""

    def __init__(self, bridge: Bridge, tokenizer: Tokenizer) -> None:
        hello = bridge.hello
        self._bridge = bridge
        self._served = Served(
            model=hello.model,
            vocab_size=hello.vocab_size,
            max_model_len_tokens=hello.max_model_len_tokens,
            tokenizer=tokenizer,
            eos_token_ids=hello.eos_token_ids,
        )
        self._created = int(time.time())
        self.app = web.Application(client_max_size=completion.MAX_BODY_BYTES, middlewares=[_typed_errors])
        self.app.router.add_post("/v1/completions", self.completions)
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/health", self.health)

    async def health(self, _: web.Request) -> web.Response:
        """200 while requests are taken; 503 while the engine drains, or once its core is gone."""
        if self._bridge.draining:
            return _error(wire.DRAINING)
        return _error(wire.ENGINE_ERROR) if self._bridge.ended.is_set() else _json({"status": "ok"})

    async def models(self, _: web.Request) -> web.Response:
        """The one model served, in OpenAI's shape and with vLLM's `max_model_len`."""
        model = {
            "id": self._served.model,
            "object": "model",
            "created": self._created,
            "owned_by": "kvledger",
            "max_model_len": self._served.max_model_len_tokens,
        }
        return _json({"object": "list", "data": [model]})

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        try:
            body = await _body(http)
            arrived_ns = time.monotonic_ns()
            asked = completion.parse_completion(
                body, http.headers, self._served, request_id=self._free_id(http), arrived_ns=arrived_ns
            )
            inbox = self._bridge.submit(asked.request)
        except BadBody as bad:
            return _error(await self._count_bad(http, bad.error))
        except EngineGone:
            return _error(self._gone())
        try:
            return await self._answer(http, asked, inbox)
        finally:
            # Reached by a cancelled handler and a failed write too: the client is gone, and its blocks go back.
            self._bridge.close(inbox)

    def _free_id(self, http: web.Request) -> str:
        """The request's id, made distinct where a client uses one twice at once. Free until the next `await`."""
        request_id = completion.request_id_of(http.headers)
        return completion.distinct_id(request_id) if self._bridge.is_open(request_id) else request_id

    def _gone(self) -> ApiError:
        return wire.DRAINING if self._bridge.draining else wire.ENGINE_ERROR

    async def _count_bad(self, http: web.Request, error: ApiError) -> ApiError:
        """Have the core count a request refused for its form; its verdict stands where it is another one (draining)."""
        try:
            inbox = self._bridge.submit(completion.malformed(http.headers, self._free_id(http)))
        except EngineGone:
            return error
        try:
            for reply in await inbox.take():
                if isinstance(reply, Refused) and reply.reason != RejectionReason.BAD_REQUEST.word:
                    return wire.refusal(reply)
        except EngineGone:
            return error
        finally:
            self._bridge.close(inbox)
        return error

    async def _answer(self, http: web.Request, asked: Completion, inbox: Inbox) -> web.StreamResponse:
        try:
            replies = await inbox.take()
            if (error := _failure(replies[0])) is not None:
                return _error(error)
            if asked.stream:
                return await self._stream(http, asked, inbox, replies)
            return await self._whole(asked, inbox, replies)
        except EngineGone:
            return _error(self._gone())

    async def _whole(self, asked: Completion, inbox: Inbox, replies: list[Reply]) -> web.Response:
        """The answer to a request that is not streamed."""
        request = asked.request
        streams = self._detokenizers(request.n)
        texts: list[list[str]] = [[] for _ in range(request.n)]
        ends: dict[int, Finished] = {}
        while True:
            for reply in replies:
                if (error := _failure(reply)) is not None:
                    self._bridge.close(inbox, CancelCause.API)
                    return _error(error)
                if isinstance(reply, Token):
                    texts[reply.index].append(streams[reply.index].feed(reply.token))
                elif isinstance(reply, Finished):
                    texts[reply.index].append(streams[reply.index].end())
                    ends[reply.index] = reply
            if len(ends) == request.n:
                return _json(self._document(request.request_id, texts, ends))
            replies = await inbox.take()

    def _detokenizers(self, sequences: int) -> list[Detokenizer]:
        return [self._served.tokenizer.stream() for _ in range(sequences)]

    def _document(self, request_id: str, texts: list[list[str]], ends: dict[int, Finished]) -> dict[str, object]:
        choices = [
            {"index": index, "text": "".join(text), "logprobs": None, "finish_reason": ends[index].reason}
            for index, text in enumerate(texts)
        ]
        return {
            "id": request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._served.model,
            "choices": choices,
            "usage": usage_of(list(ends.values())),
        }

    async def _stream(
        self, http: web.Request, asked: Completion, inbox: Inbox, replies: list[Reply]
    ) -> web.StreamResponse:
        """The answer to a streamed request: one write for all that one engine step brought."""
        request = asked.request
        writer = ChunkWriter(
            request_id=request.request_id,
            created=int(time.time()),
            model=self._served.model,
            sequences=request.n,
            include_usage=asked.include_usage,
        )
        response = web.StreamResponse(headers=SSE_HEADERS | {completion.REQUEST_ID_HEADER: request.request_id})
        # A client that left between two writes: the caller's `finally` cancels its request.
        with suppress(ConnectionError):
            await response.prepare(http)
            try:
                await self._follow(response, writer, asked, inbox, replies)
            except EngineGone:
                await response.write(writer.error(self._gone()) + DONE)
        return response

    async def _follow(
        self,
        response: web.StreamResponse,
        writer: ChunkWriter,
        asked: Completion,
        inbox: Inbox,
        replies: list[Reply],
    ) -> None:
        ends: list[Finished] = []
        streams = self._detokenizers(asked.request.n)
        while True:
            chunks, failed = _events(writer, streams, replies, ends)
            ended = failed or len(ends) == asked.request.n
            if failed:
                self._bridge.close(inbox, CancelCause.API)
            elif ended and asked.include_usage:
                chunks.append(writer.usage(ends))
            await response.write(b"".join([*chunks, DONE] if ended else chunks))
            if ended:
                return
            replies = await inbox.take()


def _failure(reply: Reply) -> ApiError | None:
    """The error that ends the whole request, None for a token or a proper end."""
    if isinstance(reply, Token):
        return None
    return wire.refusal(reply) if isinstance(reply, Refused) else wire.failed_ending(reply.reason)


def _events(
    writer: ChunkWriter, streams: list[Detokenizer], replies: list[Reply], ends: list[Finished]
) -> tuple[list[bytes], bool]:
    """The events for `replies`, whose proper endings go to `ends`; and whether the last one is an error."""
    chunks = []
    for reply in replies:
        if isinstance(reply, Token):
            chunks.append(writer.token(reply.index, streams[reply.index].feed(reply.token)))
        elif (error := _failure(reply)) is not None:
            return [*chunks, writer.error(error)], True
        elif isinstance(reply, Finished):
            ends.append(reply)
            chunks.append(writer.finish(reply.index, streams[reply.index].end(), reply.reason))
    return chunks, False


async def _body(http: web.Request) -> bytes:
    try:
        return await http.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BadBody(f"the body is larger than {completion.MAX_BODY_BYTES:,} bytes", status=wire.TOO_LARGE) from error


def _error(error: ApiError) -> web.Response:
    return web.Response(status=error.status, body=error.body, headers=error.headers, content_type="application/json")


def _json(document: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")


@web.middleware
async def _typed_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 404 and 405 in the same shape as every other error."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status not in (wire.NOT_FOUND, wire.METHOD_NOT_ALLOWED):
            raise
        code = "not_found" if error.status == wire.NOT_FOUND else "method_not_allowed"
        return _error(
            ApiError(status=error.status, code=code, message=f"{request.method} {request.path}: {error.reason}")
        )
