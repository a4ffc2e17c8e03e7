"""The load on a vLLM server while it is measured: the official client, as many requests all the time, of one shape.

Each HTTP request brings several prompts, so that the client and HTTP take little of what is measured. The clients come
one after the other, as far apart as each stays long: so any window of a few of them has about as much prefill in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bench.errors import BenchError
from tests.vllm.load import client, prompt
from tests.vllm.server import MODEL

CLIENTS = 8
PROMPT_TOKENS = 64
SHARED = 0.4
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many requests run all the time, a multiple of `CLIENTS`, and how many tokens each is to bring."""

    running: int
    output_tokens: int


def under_load(url: str, shape: Shape, work: Callable[[], Answer]) -> Answer:
    """What `work` returns, called in a thread of its own, while the server at `url` is under load.

    Each client asks for something else when it has an answer, so that requests end and others come, in turns. Raises
    `BenchError` where an answer is not what was asked for.
    """

    async def both() -> Answer:
        over = asyncio.Event()
        api = client(url)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(_keep_asking(api, shape, number, over))
            try:
                return await asyncio.to_thread(work)
            finally:
                over.set()

    return asyncio.run(both())


async def _keep_asking(api: object, shape: Shape, number: int, over: asyncio.Event) -> None:
    """The first request is as short as puts this client's next ones where they belong among the others'."""
    drawn, prompts = random.Random(number), shape.running // CLIENTS
    tokens = shape.output_tokens * (number + 1) // CLIENTS
    while not over.is_set():
        answer = await api.completions.create(  # type: ignore[attr-defined]
            model=MODEL,
            prompt=[prompt(drawn, PROMPT_TOKENS, shared=drawn.random() < SHARED) for _ in range(prompts)],
            max_tokens=tokens,
            temperature=0.0,
            extra_body={"ignore_eos": True},
        )
        got = answer.usage.completion_tokens if answer.usage else 0
        if got != tokens * prompts:
            raise BenchError(f"{got} tokens came back, {tokens * prompts} were asked for")
        tokens = shape.output_tokens
