"""Load on a live engine: clients in a closed loop, or arrivals at a rate, whatever comes of each request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

VOCABULARY = 250
BACK_OFF_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of one kind. With `clients` each sends its next one when the last has ended; with `rate` they arrive
    at random times, so many a second, whatever has become of the others. `prefix` are leading tokens that all with the
    same `prefix_id` share. `salt` is vLLM's `cache_salt`, which is what it knows of a tenant.
    """

    prompt: int
    tokens: int
    clients: int = 0
    rate: float = 0.0
    tenant: str = "acme"
    request_class: str = "default"
    prefix: int = 0
    prefix_id: int = 0
    salt: str = ""
    cancel_after: float | None = None
    pause: float = 0.0
    after: float = 0.0


def prompt_of(stream: Stream, chance: random.Random) -> list[int]:
    """A prompt that begins as its stream's do and goes on as no other does."""
    shared = random.Random(stream.prefix_id)
    head = [shared.randrange(1, VOCABULARY) for _ in range(stream.prefix)]
    return head + [chance.randrange(1, VOCABULARY) for _ in range(max(1, stream.prompt - stream.prefix))]


class Load:
    """All streams of one scenario, until it is cancelled."""

    def __init__(self, url: str, streams: Sequence[Stream], seed: int, *, model: str | None = None) -> None:
        self._url, self._streams, self._seed = f"{url}/v1/completions", streams, seed
        self._fixed = {"temperature": 0, "stream": True, "ignore_eos": True} | ({"model": model} if model else {})

    async def run(self) -> None:
        """Send for ever."""
        unlimited, patient = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(connector=unlimited, timeout=patient) as session,
            asyncio.TaskGroup() as group,
        ):
            for number, stream in enumerate(self._streams):
                for client in range(stream.clients):
                    chance = random.Random(f"{self._seed}:{number}:{client}")
                    group.create_task(self._client(session, stream, chance))
                if stream.rate:
                    group.create_task(self._arrivals(session, stream, random.Random(f"{self._seed}:{number}")))

    async def _client(self, session: aiohttp.ClientSession, stream: Stream, chance: random.Random) -> None:
        await asyncio.sleep(stream.after)
        while True:
            if not await self._send(session, stream, chance):
                await asyncio.sleep(BACK_OFF_SECONDS)
            await asyncio.sleep(stream.pause)

    async def _arrivals(self, session: aiohttp.ClientSession, stream: Stream, chance: random.Random) -> None:
        await asyncio.sleep(stream.after)
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._send(session, stream, chance))
                await asyncio.sleep(chance.expovariate(stream.rate))

    async def _send(self, session: aiohttp.ClientSession, stream: Stream, chance: random.Random) -> bool:
        """One request; whether it was let in."""
        body = self._fixed | {"prompt": prompt_of(stream, chance), "max_tokens": stream.tokens}
        body |= {"cache_salt": stream.salt} if stream.salt else {}
        headers = {"X-Tenant": stream.tenant, "X-Class": stream.request_class} if stream.tenant else {}
        try:
            async with asyncio.timeout(stream.cancel_after), session.post(self._url, json=body, headers=headers) as got:
                async for _ in got.content:
                    pass
                return got.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return True
