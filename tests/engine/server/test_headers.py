"""What a client says in headers, on its way through HTTP and the ledger to the agent's page."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvledger.words import RequestClass
from kvledger_agent.scrape.page import parse_page
from kvledger_agent.up.page import answer
from tests.engine.server.client import Client, first_event, talk
from tests.engine.server.process import EngineProcess, environment, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]


@contextmanager
def agent(directory: Path) -> Iterator[str]:
    """The real agent over a directory of ledgers; the address of its page."""
    arguments = ["agent", "--directory", str(directory), "--port", "0", "--json", "--interval", "0.1"]
    command = [sys.executable, "-m", "kvledger_agent", *arguments]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            eventually(lambda: answer(f"{url}/readyz") is not None, "the agent has sampled")
            yield f"{url}/metrics"
        finally:
            process.terminate()


def series(url: str, name: str, **labels: str) -> float:
    """The sum of the page's samples of a name whose labels include these."""
    page = answer(url)
    assert page is not None
    return parse_page(page).sum(name, **labels) or 0.0


def test_the_class_of_a_request_is_on_the_ledger_and_on_the_agents_page(shared: EngineProcess) -> None:
    first = "kvledger_time_to_first_token_seconds_count"

    async def conversation(client: Client) -> None:
        body = {"prompt": [1, 2, 3], "max_tokens": 4000, "temperature": 0}
        async with client.streaming(headers={"X-Class": "batch"}, **body) as response:
            await first_event(response)
            assert shared.sample().slots.request_class.tolist() == [RequestClass.BATCH]
            eventually(lambda: series(page, "kvledger_requests_live", **{"class": "batch"}) == 1, "it lives as batch")
            for other in ("default", "interactive"):
                assert series(page, "kvledger_requests_live", **{"class": other}) == 0

    with agent(shared.directory) as page:
        talk(shared.url, conversation)
        eventually(lambda: series(page, "kvledger_requests_live") == 0, "it is over")
        assert [series(page, first, **{"class": name}) for name in ("batch", "interactive")] == [1, 0]
