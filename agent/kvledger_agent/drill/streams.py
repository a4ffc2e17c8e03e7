"""Requests that are held open until the drill lets go of them. Knows one completion's stream; reads no level."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import aiohttp

from kvledger_agent.drill.plan import DrillPlan
from kvledger_agent.load.arrivals import Arrival
from kvledger_agent.load.body import BodyWriter
from kvledger_agent.load.client import api_root, bounded_body
from kvledger_agent.load.outcome import HTTP_OK, Ending, ending_of_status, failed
from kvledger_agent.load.plan import RequestOptions
from kvledger_agent.load.stream import CompletionStream
from kvledger_agent.load.tokens import PromptWriter


class Client:
    """One request. `answered` is set by its first token, and by its end; `ending` is None as long as it is open."""

    def __init__(self, session: aiohttp.ClientSession, url: str, body: bytes) -> None:
        self.answered, self.ending = asyncio.Event(), None
        self.stream = CompletionStream()
        self._task = asyncio.create_task(self._run(session, url, body))

    ending: Ending | None

    @property
    def held(self) -> bool:
        """Whether it has got a token, and so held a block."""
        return self.stream.tokens > 0

    async def ended(self) -> None:
        """Wait for its end."""
        await asyncio.wait([self._task])

    async def drop(self) -> None:
        """Close the connection, if it is open."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, session: aiohttp.ClientSession, url: str, body: bytes) -> None:
        now = asyncio.get_running_loop().time
        try:
            async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
                try:
                    if response.status != HTTP_OK:
                        self.ending = ending_of_status(response.status, await bounded_body(response))
                        return
                    async for data in response.content.iter_any():
                        self.stream.feed(data, now())
                        if self.held:
                            self.answered.set()
                        if self.stream.ending is not None:
                            break
                    self.ending = self.stream.close()
                finally:
                    response.close()
        except (aiohttp.ClientError, OSError):
            self.ending = failed("disconnected")
        finally:
            self.answered.set()


class Clients:
    """Opens requests with prompts of their own: number `n` has the same prompt whenever it is opened."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, plan: DrillPlan) -> None:
        self._session, self._plan = session, plan
        self._url = f"{api_root(url)}/v1/completions"
        prompts = PromptWriter(seed=plan.seed, prompt_as=plan.prompt_as, below=plan.token_ids_below)
        options = RequestOptions(ignore_eos=plan.ignore_eos, ask_usage=False)
        self._bodies = BodyWriter(model=model, options=options, prompts=prompts)

    def open(
        self, numbers: Iterable[int], *, max_tokens: int | None = None, prompt_tokens: int | None = None
    ) -> list[Client]:
        """One request for each number."""
        return [Client(self._session, self._url, self._body(number, max_tokens, prompt_tokens)) for number in numbers]

    def _body(self, number: int, max_tokens: int | None, prompt_tokens: int | None) -> bytes:
        plan = self._plan
        return self._bodies.write(
            Arrival(
                serial=number,
                at_seconds=0.0,
                prompt_tokens=plan.prompt_tokens if prompt_tokens is None else prompt_tokens,
                output_tokens=plan.max_tokens if max_tokens is None else max_tokens,
                tenant="drill",
            )
        )
