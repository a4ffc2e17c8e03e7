"""A real OpenAI-compatible endpoint for tests: streams, refuses, hangs and breaks on demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Seen:
    """One request as the endpoint saw it."""

    at_seconds: float
    body: dict[str, Any]
    headers: dict[str, str]


Behaviour = Callable[["Endpoint", web.Request, Seen], Awaitable[web.StreamResponse]]


@dataclass
class Endpoint:
    """The endpoint's memory and its switches; `url` is set while it runs."""

    behaviour: Behaviour
    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    disconnects: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def until(self, predicate: Callable[[Endpoint], bool]) -> None:
        """Wait until the predicate holds; it is looked at whenever a request came or went."""
        async with self.changed, asyncio.timeout(20):
            await self.changed.wait_for(lambda: predicate(self))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Record the request, then behave; a dropped connection is counted."""
        seen = Seen(asyncio.get_running_loop().time(), await request.json(), dict(request.headers))
        await self._note(seen)
        try:
            return await self.behaviour(self, request, seen)
        except (asyncio.CancelledError, ConnectionResetError):
            self.disconnects += 1
            await self._note(None)
            raise

    async def models(self, _: web.Request) -> web.Response:
        """What `GET /v1/models` says."""
        return web.json_response({"object": "list", "data": [{"id": "cell", "object": "model"}]})

    async def _note(self, seen: Seen | None) -> None:
        async with self.changed:
            if seen is not None:
                self.seen.append(seen)
            self.changed.notify_all()


@asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[Endpoint]:
    """Serve on a free loopback port; handlers are cancelled when their client goes away."""
    endpoint = Endpoint(behaviour)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/completions", endpoint.completions)
    app.router.add_get("/v1/models", endpoint.models)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        endpoint.url = f"http://{host}:{port}"
        yield endpoint
    finally:
        await runner.cleanup()


def event(payload: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def chunk(text: str, finish_reason: str | None = None) -> bytes:
    """One completion chunk."""
    return event({"object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


async def open_stream(request: web.Request) -> web.StreamResponse:
    """Send the headers of a stream."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def stream_all(_: Endpoint, request: web.Request, seen: Seen) -> web.StreamResponse:
    """Stream exactly `max_tokens` tokens at once, usage and the end."""
    response = await open_stream(request)
    count = seen.body["max_tokens"]
    tokens = [chunk("a", "length" if number == count - 1 else None) for number in range(count)]
    usage = {"prompt_tokens": len(seen.body["prompt"]), "completion_tokens": count}
    await response.write(b"".join(tokens) + event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def stream_slowly(*, first_seconds: float, token_seconds: float) -> Behaviour:
    """Stream `max_tokens` tokens with pauses; the first one includes the headers."""

    async def behave(__: Endpoint, request: web.Request, seen: Seen) -> web.StreamResponse:
        await asyncio.sleep(first_seconds)
        response = await open_stream(request)
        for _ in range(seen.body["max_tokens"]):
            await response.write(chunk("a"))
            await asyncio.sleep(token_seconds)
        await response.write(chunk("", "length") + b"data: [DONE]\n\n")
        return response

    return behave


async def hang(_: Endpoint, __: web.Request, ___: Seen) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError("nobody sets this event")


async def hang_after_headers(_: Endpoint, request: web.Request, __: Seen) -> web.StreamResponse:
    """Answer the headers at once and then nothing."""
    await open_stream(request)
    await asyncio.Event().wait()
    raise AssertionError("nobody sets this event")


def refuse(status: int, code: object, *, kind: str = "invalid_request_error") -> Behaviour:
    """Refuse with an error body."""

    async def behave(_: Endpoint, __: web.Request, ___: Seen) -> web.StreamResponse:
        error = {"message": "no", "type": kind, "code": code, "retryable": status != 400}
        return web.json_response({"error": error}, status=status)

    return behave


def send_raw(*parts: bytes, content_type: str = "text/event-stream", cut: bool = False) -> Behaviour:
    """Answer 200 with these bytes; `cut` closes the connection in the middle of the stream."""

    async def behave(_: Endpoint, request: web.Request, __: Seen) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return behave
