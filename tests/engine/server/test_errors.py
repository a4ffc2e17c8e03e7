"""Each rejection reason and finish reason of docs/errors.md, provoked through HTTP, as the official client sees it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from kvledger.words import FinishReason, RejectionReason
from kvledger_engine import wire
from tests.engine.server.client import Client, first_event, talk
from tests.engine.server.openais import client, code_of
from tests.engine.server.process import ROOT, EngineProcess, engine, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

SMALL: dict[str, Any] = {"model": "cell", "prompt": "hello", "max_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = SMALL | {"max_tokens": 3000}
SLOW = ("--step-time", "base=5ms")
ONE = ("--max-num-seqs", "1", "--max-waiting", "1", "--step-time", "base=5ms")


@contextmanager
def refused(kind: type[openai.APIStatusError], status: int, code: str, *, retryable: bool) -> Iterator[None]:
    """What is asked inside is answered with this error."""
    with pytest.raises(kind) as caught:
        yield
    assert code_of(caught.value) == (status, code)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["retryable"] is retryable
    assert caught.value.response.headers["X-Should-Retry"] == str(retryable).lower()
    assert ("Retry-After" in caught.value.response.headers) is retryable


@contextmanager
def running(process: EngineProcess) -> Iterator[None]:
    """A stream that runs meanwhile."""
    with client(process.url) as asking:
        stream = asking.completions.create(**LONG, stream=True)
        next(iter(stream))
        yield
        stream.close()


def test_the_page_names_every_reason_with_its_status() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (\d+) \|", page, re.MULTILINE))
    assert set(rows) == set(RejectionReason.words()) | set(FinishReason.words())
    assert {word: int(status) for word, status in rows.items() if int(status) != 200} == dict(wire.STATUS)


def test_bad_request(shared: EngineProcess) -> None:
    with client(shared.url) as asking, refused(openai.BadRequestError, 400, "bad_request", retryable=False):
        asking.completions.create(**SMALL | {"prompt": ""})


def test_context_too_long(shared: EngineProcess) -> None:
    with client(shared.url) as asking, refused(openai.BadRequestError, 400, "context_too_long", retryable=False):
        asking.completions.create(**SMALL | {"max_tokens": 8188})


def test_exceeds_pool(shared: EngineProcess) -> None:
    with client(shared.url) as asking, refused(openai.BadRequestError, 400, "exceeds_pool", retryable=False):
        asking.completions.create(**SMALL | {"max_tokens": 5000})


def test_queue_full(directory: Path) -> None:
    async def conversation(asking: Client) -> None:
        waiting = asyncio.create_task(asking.complete(**LONG))
        while process.gauge("waiting") < 1:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(ask)
        waiting.cancel()

    def ask() -> None:
        with client(process.url) as official, refused(openai.RateLimitError, 429, "queue_full", retryable=True):
            official.completions.create(**SMALL)

    with engine(directory, *ONE) as process, running(process):
        talk(process.url, conversation)


@pytest.mark.parametrize("own", [False, True])
def test_queue_timeout(directory: Path, own: bool) -> None:
    flags, body = (ONE, {"queue_timeout": 0.1}) if own else ((*ONE, "--queue-timeout", "0.1"), {})
    with engine(directory, *flags) as process, running(process), client(process.url) as asking:
        with refused(openai.InternalServerError, 503, "queue_timeout", retryable=True):
            asking.completions.create(**SMALL, extra_body=body)
        assert process.counter("rejections_total", reason="queue_timeout") == 1
        assert process.gauge("running") == 1


def test_draining(directory: Path) -> None:
    with engine(directory, *ONE) as process, client(process.url) as asking:
        with running(process):
            process.signal(signal.SIGTERM)
            eventually(lambda: not _healthy(asking), "the engine drains")
            with refused(openai.InternalServerError, 503, "draining", retryable=True):
                asking.completions.create(**SMALL)
        assert process.wait()[0] == 0


def _healthy(asking: openai.OpenAI) -> bool:
    root = str(asking.base_url).removesuffix("/v1/")
    return bool(asking._client.get(f"{root}/health").status_code == 200)


@pytest.mark.parametrize("own", [False, True])
def test_run_timeout(directory: Path, own: bool) -> None:
    flags, body = (ONE, {"run_timeout": 0.1}) if own else ((*ONE, "--run-timeout", "0.1"), {})
    with engine(directory, *flags) as process, client(process.url) as asking:
        with refused(openai.InternalServerError, 504, "run_timeout", retryable=False):
            asking.completions.create(**LONG, extra_body=body)
        assert process.ended("run_timeout") == 1
        assert process.holds_nothing()


def test_pool_exhausted(directory: Path) -> None:
    # A client that left has leaked its blocks: what the whole pool could hold is more than what is left of it.
    with engine(directory, "--blocks", "16", "--max-model-len", "256", "--fault", "skipped_free", *SLOW) as process:

        async def leak(asking: Client) -> None:
            async with asking.streaming(prompt=[3] * 90, max_tokens=160, temperature=0) as response:
                await first_event(response)
            while process.gauge("running"):
                await asyncio.sleep(0.005)

        talk(process.url, leak)
        with client(process.url) as asking, refused(openai.InternalServerError, 503, "pool_exhausted", retryable=True):
            asking.completions.create(**SMALL | {"prompt": [7] * 200})


def test_cancelled(directory: Path) -> None:
    async def conversation(asking: Client) -> None:
        asked = asyncio.create_task(asking.complete(**LONG))
        while process.gauge("running") < 1:
            await asyncio.sleep(0.005)
        process.signal(signal.SIGTERM)
        answer = await asked
        assert (answer.status, answer.error["code"], answer.error["retryable"]) == (503, "cancelled", True)

    with engine(directory, *ONE, "--drain-timeout", "0.1") as process:
        talk(process.url, conversation)
        assert process.wait()[0] == 0


def test_engine_error(directory: Path) -> None:
    with engine(directory, *ONE) as process:
        with client(process.url) as asking:
            os.kill(process.core.pid, signal.SIGKILL)
            assert process.core.ended_within(10)
            with refused(openai.InternalServerError, 503, "engine_error", retryable=True):
                asking.completions.create(**SMALL)
        assert process.stop()[0] == 1


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_length_and_stop(shared: EngineProcess, reason: str) -> None:
    with client(shared.url) as asking:
        whole = asking.completions.create(**SMALL).choices[0].text
        more: dict[str, Any] = {"stop": whole[:1]} if reason == "stop" else {}
        assert asking.completions.create(**SMALL, **more).choices[0].finish_reason == reason
