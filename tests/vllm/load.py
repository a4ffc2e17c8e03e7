"""Load of the official OpenAI client on a server of the tiny model: prompts are token numbers, seeds say everything."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.vllm.server import MODEL

LONGEST = 2048
PREFIXES = tuple([3 + (17 * number + 31 * which) % 500 for number in range(160)] for which in range(3))


def prompt(source: random.Random, tokens: int, *, shared: bool = False) -> list[int]:
    """A prompt of that many tokens, its beginning one of a few that others have, too, if it is shared."""
    head = source.choice(PREFIXES)[: max(0, tokens - 1)] if shared else []
    return [*head, *(source.randrange(3, 503) for _ in range(tokens - len(head)))]


def client(url: str) -> openai.AsyncOpenAI:
    """A client without retries, which would hide refusals."""
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)


@dataclass(slots=True)
class Load:
    """Everything that was sent and what came of it."""

    api: openai.AsyncOpenAI
    source: random.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    stopping: bool = False
    _begun: dict[str, asyncio.Event] = field(default_factory=dict)
    """Who goes away when its prompt is seen to be computed, by its own name for its request."""

    async def mixed(self, workers: int) -> None:
        """Until `stopping`: workers that complete, share, sample four times, abort in every state, and ask too much."""
        await asyncio.gather(*(self._worker(index) for index in range(workers)))

    async def _worker(self, index: int) -> None:
        kinds = (
            self.completes, self.shares, self.samples_four, self.aborts, self.aborts, self.aborts_early,
            self.constrained, self.asks_too_much,
        )  # fmt: skip
        while not self.stopping:
            await self.source.choice(kinds)()
            if self.source.random() < 0.1:
                await asyncio.sleep(0)

    async def completes(self, tokens: int | None = None) -> None:
        """A prompt of its own, to its end."""
        await self._create(prompt(self.source, tokens or self.source.randrange(1, 900)), self.source.randrange(1, 120))
        self.outcomes["completed"] += 1

    async def shares(self) -> None:
        """A prompt with a shared beginning."""
        await self._create(prompt(self.source, self.source.randrange(170, 400), shared=True), 40)
        self.outcomes["shared"] += 1

    async def samples_four(self) -> None:
        """One prompt, four answers."""
        await self._create(prompt(self.source, 200, shared=True), self.source.randrange(2, 80), n=4)
        self.outcomes["four"] += 1

    async def aborts(self) -> None:
        """A client that goes away: at once, after a while without an answer, among tokens, or at the last one."""
        tokens = self.source.choice((4, 60, 300))
        stop_after = self.source.choice((0, 0, 1, tokens // 2, tokens - 1))
        coming = self.api.completions.create(
            model=MODEL,
            prompt=prompt(self.source, self.source.randrange(100, 1200)),
            max_tokens=tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        if stop_after == 0:
            task: asyncio.Task[Any] = asyncio.ensure_future(coming)
            await asyncio.wait((task,), timeout=self.source.choice((0.01, 0.1, 0.5)))
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
                self.outcomes["aborted before an answer"] += 1
                return
            stream = task.result()
        else:
            stream = await coming
        received = 0
        async for _ in stream:
            received += 1
            if received >= stop_after:
                break
        await stream.close()
        self.outcomes["aborted among tokens"] += 1

    async def aborts_early(self) -> None:
        """A client that goes away while its long prompt waits or is computed, step by step."""
        name = f"early-{self.source.getrandbits(64):016x}"
        begun = self._begun[name] = asyncio.Event()
        coming = self.api.completions.create(
            model=MODEL,
            prompt=prompt(self.source, self.source.randrange(1200, 1900)),
            max_tokens=4,
            extra_headers={"X-Request-Id": name},
        )
        task: asyncio.Task[Any] = asyncio.ensure_future(coming)
        seen = asyncio.ensure_future(begun.wait())
        # From 5 ms to 2.5 s, each order of magnitude as often as the other: machines differ in how long a prompt takes.
        # Or when it is seen to be computed, since that is short and rare.
        seconds = None if self.source.random() < 0.5 else 0.005 * 10 ** self.source.uniform(0, 2.7)
        await asyncio.wait((task, seen), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        seen.cancel()
        del self._begun[name]
        if task.cancel():
            await asyncio.wait((task,))
            self.outcomes["aborted before an answer"] += 1

    def note_prefilling(self, request_ids: Iterable[str]) -> None:
        """These have begun to be computed: whoever waits for that goes away now."""
        for request_id in request_ids:
            for name, begun in self._begun.items():
                if name in request_id:
                    begun.set()

    async def constrained(self) -> None:
        """A request that waits for its grammar to be compiled: a new one each time.

        This model is not made for grammars: now and then vLLM ends one itself, as it cannot go on.
        """
        pattern = "".join(f"t{self.source.randrange(3, 500)}( t{self.source.randrange(3, 500)})*" for _ in range(150))
        try:
            await self.api.completions.create(
                model=MODEL,
                prompt=prompt(self.source, 30),
                max_tokens=2,
                extra_body={"structured_outputs": {"regex": pattern}},
            )
        except openai.InternalServerError:
            self.outcomes["failed in the engine"] += 1
            return
        self.outcomes["constrained"] += 1

    async def asks_too_much(self) -> None:
        """A prompt that is longer than the model's context: refused."""
        try:
            await self._create(prompt(self.source, LONGEST + 10), 10)
        except openai.BadRequestError:
            self.outcomes["refused"] += 1
            return
        raise AssertionError("a prompt longer than the context was taken")

    async def _create(self, tokens: list[int], most: int, *, n: int = 1) -> None:
        await self.api.completions.create(
            model=MODEL, prompt=tokens, max_tokens=most, n=n, temperature=1.0, extra_body={"ignore_eos": True}
        )
