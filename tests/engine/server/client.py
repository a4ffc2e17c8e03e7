"""A real HTTP client for completions: whole, streamed, and gone in the middle."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

SECONDS = 20.0


@dataclass
class Answer:
    """A response read to its end. A stream's texts are by sequence; `error` is what a stream ended with."""

    status: int
    headers: dict[str, str]
    document: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def error(self) -> dict[str, Any]:
        """The error object of the answer or of the last event."""
        document = self.events[-1] if self.events else self.document
        assert "error" in document, document
        return dict(document["error"])

    @property
    def texts(self) -> list[str]:
        """Text by sequence."""
        texts: dict[int, str] = {}
        for document in self.events or [self.document]:
            for choice in document["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        return [texts[index] for index in sorted(texts)]


class Client:
    """Completions over one session."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def get(self, path: str) -> Answer:
        """GET a JSON document."""
        async with self.session.get(self.url + path) as response:
            return Answer(response.status, dict(response.headers), await response.json())

    async def post(self, data: bytes | str, headers: dict[str, str] | None = None) -> Answer:
        """POST a body as it is."""
        body = io.BytesIO(data.encode() if isinstance(data, str) else data)
        async with self.session.post(f"{self.url}/v1/completions", data=body, headers=headers) as response:
            return Answer(response.status, dict(response.headers), await response.json())

    async def complete(self, *, headers: dict[str, str] | None = None, **body: Any) -> Answer:
        """One completion that is not streamed."""
        return await self.post(json.dumps(body), headers)

    @asynccontextmanager
    async def streaming(
        self, *, headers: dict[str, str] | None = None, **body: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream whose headers have come. Leaving the block early drops the connection."""
        url, document = f"{self.url}/v1/completions", body | {"stream": True}
        async with self.session.post(url, json=document, headers=headers) as response:
            yield response

    async def stream(self, **body: Any) -> Answer:
        """One completion streamed to its end."""
        async with self.streaming(**body) as response:
            return await read_stream(response)


async def read_stream(response: aiohttp.ClientResponse) -> Answer:
    """Read a stream to its end, or the document of an answer that is none."""
    answer = Answer(response.status, dict(response.headers))
    if response.content_type != "text/event-stream":
        answer.document = await response.json()
        return answer
    async for line in response.content:
        if line.startswith(b"data: [DONE]"):
            answer.done = True
        elif line.startswith(b"data: "):
            answer.events.append(json.loads(line[6:]))
    return answer


async def first_event(response: aiohttp.ClientResponse) -> bytes:
    """Wait for the first event of a stream."""
    assert response.status == 200, await response.text()
    return await response.content.readuntil(b"\n\n")


def talk(url: str, conversation: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
    """Run a conversation with a server on an event loop of its own."""

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with asyncio.timeout(SECONDS * 2), aiohttp.ClientSession(connector=connector) as session:
            await conversation(Client(session, url))

    asyncio.run(run())
