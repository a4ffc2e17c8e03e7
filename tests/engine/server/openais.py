"""The official `openai` client against a server: without retries, so that every answer is seen once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import openai

SECONDS = 20.0


def client(url: str, key: str = "none") -> openai.OpenAI:
    """A client that blocks. Use as a context manager."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, timeout=SECONDS).with_options(max_retries=0)


def talk_async(url: str, conversation: Callable[[openai.AsyncOpenAI], Coroutine[Any, Any, None]]) -> None:
    """Run a conversation of the asynchronous client on an event loop of its own."""

    async def run() -> None:
        made = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=SECONDS)
        async with asyncio.timeout(2 * SECONDS), made.with_options(max_retries=0) as asking:
            await conversation(asking)

    asyncio.run(run())


def code_of(error: openai.APIStatusError) -> tuple[int, str | None]:
    """Status and machine-readable code of what a client raised."""
    return error.status_code, error.code
