"""Clients that go away: over HTTP, with raw connections, after the first token of a stream or in a storm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ENDLESS: dict[str, Any] = {"max_tokens": 900, "temperature": 0, "stream": True, "ignore_eos": True}


class Leavers:
    """Requests to one server that are given up in each of the ways there are."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._host, self._port, self._number = parts.hostname, parts.port, 0

    async def _send(self, path: str, body: dict[str, Any], request_id: str = "") -> Streams:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        payload = json.dumps(body).encode()
        named = f"X-Request-Id: {request_id}\r\n" if request_id else ""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\n{named}Connection: close\r\nContent-Length: {len(payload)}\r\n\r\n"
        writer.write(head.encode() + payload)
        await writer.drain()
        return reader, writer

    async def begin(self, **more: Any) -> Streams:
        """A stream that has brought its first token."""
        return (await self._begin(**more))[0]

    async def _begin(self, **more: Any) -> tuple[Streams, str]:
        """As `begin`, with the id of its request."""
        self._number += 1
        name, prompt = f"leaver-{self._number}", [(self._number + i) % 200 for i in range(64)]
        streams = await self._send("/v1/completions", ENDLESS | {"prompt": prompt} | more, name)
        await streams[0].readuntil(b"data: ")
        return streams, f"cmpl-{name}"

    async def disconnect(self) -> None:
        """A client that leaves in the middle of a stream."""
        (_, writer), _ = await self._begin()
        writer.close()

    async def abort(self) -> None:
        """A request that somebody ends by its id; its client hears of it."""
        (reader, writer), name = await self._begin()
        answer, other = await self._send("/v1/abort", {"id": name})
        await answer.read()
        await reader.read()
        for end in (writer, other):
            end.close()

    async def time_out(self) -> None:
        """A request that has had all the time it may have."""
        (reader, writer), _ = await self._begin(run_timeout=0.02)
        await reader.read()
        writer.close()

    async def storm(self, clients: int) -> None:
        """Clients that all come, leave and come again: most before they have an answer, every fifth with its first."""
        await asyncio.gather(*(self._come_and_leave(number) for number in range(clients)))

    async def _come_and_leave(self, number: int) -> None:
        for again in range(2):
            prompt: Sequence[int] = [(number + i) % 200 for i in range(64)]
            reader, writer = await self._send("/v1/completions", ENDLESS | {"prompt": prompt})
            if again and number % 5 == 0:
                await reader.readuntil(b"data: ")
            else:
                await asyncio.sleep(0.001 * (number % 20) * again)
            writer.close()
