"""A closed window: so many streamed completions at once, begun together; output tokens a second until the last ends.

Reads what comes without looking into it, and counts afterwards: the clients share the processors with the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit

import numpy as np

from bench.errors import BenchError

_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The load of a window. Prompts are random token ids of [lowest, vocabulary); no two windows share one."""

    streams: int
    prompt_tokens: int
    output_tokens: int
    vocabulary: int
    lowest: int = 3

    @property
    def tokens(self) -> int:
        """Output tokens of a window."""
        return self.streams * self.output_tokens

    def alone(self) -> Closed:
        """The same load from one client."""
        return replace(self, streams=1)

    def prompts(self, seed: int) -> list[list[int]]:
        """The prompts of the window with this seed."""
        drawn = np.random.default_rng(seed).integers(self.lowest, self.vocabulary, (self.streams, self.prompt_tokens))
        prompts: list[list[int]] = drawn.tolist()
        return prompts

    def window(self, url: str, model: str, seed: int) -> float:
        """Output tokens a second. Raises `BenchError` if an answer is no 200 or has not as many tokens as asked for."""
        return asyncio.run(self._window(url, model, seed))

    async def _window(self, url: str, model: str, seed: int) -> float:
        parts, loop = urlsplit(url), asyncio.get_running_loop()
        requests = [self._request(model, prompt) for prompt in self.prompts(seed)]
        began = time.perf_counter()
        clients = []
        for request in requests:
            _, client = await loop.create_connection(partial(Client, request), parts.hostname or "", parts.port or 80)
            clients.append(client)
        await asyncio.gather(*(client.ended for client in clients))
        seconds = time.perf_counter() - began
        for client in clients:
            client.require(self.output_tokens)
        return self.tokens / seconds

    def _request(self, model: str, prompt: list[int]) -> bytes:
        asked = {
            "model": model,
            "prompt": prompt,
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body = json.dumps(asked).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


class Client(asyncio.Protocol):
    """One request, sent as soon as there is a connection; `ended` when the server has closed it."""

    def __init__(self, request: bytes) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request, self._read = request, list[bytes]()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._read.append(data)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if not self.ended.done():
            self.ended.set_result(None)

    def require(self, tokens: int) -> None:
        """Raises `BenchError` unless the answer is whole and of so many tokens."""
        answer = b"".join(self._read)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise BenchError(f"the server answered {answer[:300]!r}")
        counted = _USAGE.findall(answer)
        if not counted or int(counted[-1]) != tokens:
            raise BenchError(f"an answer counts {counted[-1:]} tokens, not {tokens}: its end is {answer[-300:]!r}")
