"""Clients that only read: so many streamed completions at once, each begun anew when it ends. Parses no JSON."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import numpy as np

from bench.errors import BenchError

READ_BYTES = 1 << 16


class Streams:
    """`count` clients of one engine, within the running event loop. `events` counts the stream events they read."""

    def __init__(self, url: str, *, count: int, prompt_tokens: int, output_tokens: int, vocabulary: int) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._shape = prompt_tokens, output_tokens
        self._vocabulary, self._random = vocabulary, np.random.default_rng(0)
        self._count, self._tasks = count, list[asyncio.Task[None]]()
        self.events = 0

    async def __aenter__(self) -> Streams:
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self._count)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def require_all(self) -> None:
        """Raises `BenchError` when a client has stopped."""
        for task in self._tasks:
            if task.done():
                raise BenchError(f"a client stopped: {task.exception()}")

    async def _client(self) -> None:
        while True:
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                writer.write(self._request())
                await self._drain(reader)
            finally:
                writer.close()

    async def _drain(self, reader: asyncio.StreamReader) -> None:
        status = await reader.readline()
        if b" 200 " not in status:
            raise BenchError(f"the engine answered {status!r}")
        while data := await reader.read(READ_BYTES):
            self.events += data.count(b"data: ")

    def _request(self) -> bytes:
        prompt_tokens, output_tokens = self._shape
        prompt = self._random.integers(0, self._vocabulary, prompt_tokens).tolist()
        body = json.dumps({"prompt": prompt, "max_tokens": output_tokens, "stream": True}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
