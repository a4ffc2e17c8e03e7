"""The load of one window on a vLLM server: the official client, 64 requests at a time, the same shape in every window.

Each HTTP request brings several prompts, so that the client and HTTP take little of what is measured.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from bench.errors import BenchError
from tests.vllm.load import client, prompt
from tests.vllm.server import MODEL

CLIENTS, PROMPTS = 8, 8
CONCURRENT = CLIENTS * PROMPTS
OUTPUT_TOKENS = 256
FIRST_TOKENS = range(72, 184, 14)
"""Of each client's `OUTPUT_TOKENS`, so many belong to its first request: requests end, and others come, in turns."""
PROMPT_TOKENS = range(32, 160)
SHARED = 0.4
SETTLING_TOKENS = 16
_SHAPE_SEED = 5


@dataclass(frozen=True, slots=True)
class Batch:
    """One HTTP request: its prompts, and the tokens that each of them gets."""

    prompts: list[list[int]]
    tokens: int


def wave(number: int) -> list[list[Batch]]:
    """What each client asks for, one after the other. Lengths are the same for every number, words are not."""
    shape, words = random.Random(_SHAPE_SEED), random.Random(number)
    return [
        [Batch(_prompts(shape, words), tokens) for tokens in (first, OUTPUT_TOKENS - first)] for first in FIRST_TOKENS
    ]


def _prompts(shape: random.Random, words: random.Random) -> list[list[int]]:
    return [prompt(words, shape.choice(PROMPT_TOKENS), shared=shape.random() < SHARED) for _ in range(PROMPTS)]


def requests(of_clients: list[list[Batch]]) -> int:
    """Sequences that arrive at the engine core."""
    return sum(len(batch.prompts) for batches in of_clients for batch in batches)


def output_tokens(of_clients: list[list[Batch]]) -> int:
    """Tokens that come back."""
    return sum(batch.tokens * len(batch.prompts) for batches in of_clients for batch in batches)


class Waves:
    """One client that stays connected through all windows. Used by one thread; closed by `close`."""

    def __init__(self, url: str) -> None:
        self._runner, self._api = asyncio.Runner(), client(url)
        self._number = 0

    def settle(self) -> None:
        """A short one that is not measured: connections are open and pages there when the measured one begins."""
        self._number += 1
        self._send([[Batch(batches[0].prompts, SETTLING_TOKENS)] for batches in wave(-self._number)])

    def window(self) -> float:
        """Output tokens a second, from the first request to the last answer."""
        sent = wave(self._number)
        began = time.perf_counter()
        self._send(sent)
        return output_tokens(sent) / (time.perf_counter() - began)

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._runner.run(self._api.close())
        self._runner.close()

    def _send(self, of_clients: list[list[Batch]]) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self._ask(batches) for batches in of_clients))

        self._runner.run(all_of_them())

    async def _ask(self, batches: list[Batch]) -> None:
        for batch in batches:
            answer = await self._api.completions.create(
                model=MODEL,
                prompt=batch.prompts,
                max_tokens=batch.tokens,
                temperature=0.0,
                extra_body={"ignore_eos": True},
            )
            got = answer.usage.completion_tokens if answer.usage else 0
            if got != batch.tokens * len(batch.prompts):
                raise BenchError(f"{got} tokens came back, {batch.tokens * len(batch.prompts)} were asked for")
