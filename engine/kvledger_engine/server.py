"""The HTTP server: OpenAI's endpoints over the bridge, with cancellation when a client goes away.

Owns routes and connections. Refusals are the core's; what is refused here for its form is sent there to be counted.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import msgspec
from aiohttp import web

from kvledger.words import RejectionReason
from kvledger_engine import wire
from kvledger_engine.answer import Answer, error_response, gone, json_response
from kvledger_engine.arrival import Arrival, BadBody, distinct_id, malformed, request_id_of
from kvledger_engine.body import MAX_BODY_BYTES, Asked, Served
from kvledger_engine.bridge import Bridge, EngineGone
from kvledger_engine.chat import parse_chat
from kvledger_engine.completion import parse_completion
from kvledger_engine.decisions import LARGE_BODY, METHOD_NOT_ALLOWED, NO_KEY, NOT_FOUND
from kvledger_engine.keys import ApiKeys
from kvledger_engine.messages import Refused
from kvledger_engine.template import ChatTemplate
from kvledger_engine.tokenizer import Tokenizer
from kvledger_engine.wire import ApiError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Parse = Callable[[bytes, Arrival, Served], Asked]


class AbortBody(msgspec.Struct):
    """Which request to abort: the `id` of its answer or chunks, or of its X-Request-Id header."""

    id: str


class CompletionServer:
    """The routes over one bridge. Run its `app` with `handler_cancellation=True`, or disconnects go unseen."""

    def __init__(
        self, bridge: Bridge, tokenizer: Tokenizer, template: ChatTemplate | None = None, keys: ApiKeys | None = None
    ) -> None:
        hello = bridge.hello
        self._bridge, self._keys = bridge, keys
        self._served = Served(
            model=hello.model,
            vocab_size=hello.vocab_size,
            max_model_len_tokens=hello.max_model_len_tokens,
            tokenizer=tokenizer,
            eos_token_ids=hello.eos_token_ids,
            capacity_tokens=hello.capacity_tokens or None,
            has_scores=hello.has_scores,
            block_size_tokens=hello.block_size_tokens,
            quotas=hello.quotas,
            template=template,
        )
        self._created = int(time.time())
        self.app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_typed_errors])
        self.app.router.add_post("/v1/completions", self.completions)
        self.app.router.add_post("/v1/chat/completions", self.chat_completions)
        self.app.router.add_post("/v1/abort", self.abort)
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_get("/health", self.health)

    async def health(self, _: web.Request) -> web.Response:
        """200 while requests are taken; 503 while the engine drains, or once its core is gone."""
        if self._bridge.draining or self._bridge.ended.is_set():
            return error_response(gone(self._bridge))
        return json_response({"status": "ok"})

    async def models(self, http: web.Request) -> web.Response:
        """The one model served, in OpenAI's shape and with vLLM's `max_model_len`."""
        try:
            self._key_name(http)
        except BadBody as bad:
            return error_response(bad.error)
        model = {
            "id": self._served.model,
            "object": "model",
            "created": self._created,
            "owned_by": "kvledger",
            "max_model_len": self._served.max_model_len_tokens,
        }
        return json_response({"object": "list", "data": [model]})

    async def abort(self, http: web.Request) -> web.Response:
        """`POST /v1/abort`: end an open request, whose client is told. 404 if there is none of this tenant's."""
        try:
            key_name = self._key_name(http)
            wanted = _ABORT.decode(await _body(http))
        except BadBody as bad:
            return error_response(bad.error)
        except msgspec.DecodeError as error:
            return error_response(BadBody(str(error), param="id").error)
        try:
            if self._bridge.abort(wanted.id, key_name):
                return json_response({"id": wanted.id, "aborted": True})
        except EngineGone:
            return error_response(gone(self._bridge))
        message = "no request of this id is open: it has ended, or never was"
        return error_response(ApiError(status=NOT_FOUND, code="not_found", message=message, param="id"))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`."""
        return await self._generate(http, "cmpl", parse_completion)

    async def chat_completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        return await self._generate(http, "chatcmpl", parse_chat)

    async def _generate(self, http: web.Request, prefix: str, parse: Parse) -> web.StreamResponse:
        arrival = Arrival(headers={}, request_id=self._free_id(http, prefix), arrived_ns=time.monotonic_ns())
        try:
            arrival = replace(arrival, key_name=self._key_name(http), headers=http.headers)
            body = await _body(http)
            # An id is free until the next `await`, and the wait begins when all of the request is here.
            arrival = replace(arrival, request_id=self._free_id(http, prefix), arrived_ns=time.monotonic_ns())
            asked = parse(body, arrival, self._served)
            inbox = self._bridge.submit(asked.request)
        except BadBody as bad:
            return error_response(await self._count_bad(replace(arrival, request_id=self._free_id(http, prefix)), bad))
        except EngineGone:
            return error_response(gone(self._bridge))
        try:
            return await Answer(self._bridge, inbox, asked, self._served).give(http)
        except EngineGone:
            return error_response(gone(self._bridge))
        finally:
            # Reached by a cancelled handler and a failed write too: the client is gone, and its blocks go back.
            self._bridge.close(inbox)

    def _key_name(self, http: web.Request) -> str | None:
        """The name of the client's API key; None where keys are not asked for. Raises `BadBody`."""
        if self._keys is None:
            return None
        name = self._keys.name_of(http.headers)
        if name is None:
            raise BadBody(NO_KEY.message, param="Authorization", decided=NO_KEY)
        return name

    def _free_id(self, http: web.Request, prefix: str) -> str:
        """The request's id, made distinct where a client uses one twice at once. Free until the next `await`."""
        request_id = request_id_of(http.headers, prefix)
        return distinct_id(request_id) if self._bridge.is_open(request_id) else request_id

    async def _count_bad(self, arrival: Arrival, bad: BadBody) -> ApiError:
        """Have the core count a request refused for its form; its verdict stands where it is another one (draining)."""
        try:
            inbox = self._bridge.submit(malformed(arrival))
        except EngineGone:
            return bad.error
        try:
            for reply in await inbox.take():
                if isinstance(reply, Refused) and reply.reason != RejectionReason.BAD_REQUEST.word:
                    return wire.refusal(reply)
        except EngineGone:
            return bad.error
        finally:
            self._bridge.close(inbox)
        return bad.error


_ABORT = msgspec.json.Decoder(AbortBody)


async def _body(http: web.Request) -> bytes:
    try:
        return await http.read()
    except web.HTTPRequestEntityTooLarge as error:
        message = f"the body is larger than {MAX_BODY_BYTES:,} bytes; {LARGE_BODY.advice}"
        raise BadBody(message, decided=LARGE_BODY) from error


@web.middleware
async def _typed_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 404 and 405 in the same shape as every other error."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status not in (NOT_FOUND, METHOD_NOT_ALLOWED):
            raise
        code = "not_found" if error.status == NOT_FOUND else "method_not_allowed"
        return error_response(
            ApiError(status=error.status, code=code, message=f"{request.method} {request.path}: {error.reason}")
        )
