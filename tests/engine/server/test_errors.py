"""Each rejection reason and finish reason of docs/errors.md, provoked through HTTP, as the official client sees it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from kvledger.words import FinishReason, RejectionReason
from tests.engine.server.client import Client, first_event, talk
from tests.engine.server.openais import client, code_of, talk_async
from tests.engine.server.process import ROOT, EngineProcess, engine, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

SMALL: dict[str, Any] = {"model": "cell", "prompt": "hello", "max_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = SMALL | {"max_tokens": 3000}
SLOW = ("--step-time", "base=5ms")
ONE = ("--max-num-seqs", "1", "--max-waiting", "1", "--step-time", "base=5ms")


ELSEWHERE = {"out_of_memory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of the page: `case` is what stands behind the code in brackets, `retryable` is None for completions."""

    code: str
    case: str
    status: int
    exception: str
    retryable: bool | None


def _rows() -> Iterator[Row]:
    row = r"^\| `(\w+)`(?: \(([^|]*)\))? \| (\d+) \| `?(\w+)`? \| (yes|no|) ?\| [^|]{5,} \|$"
    for code, case, status, exception, retryable in re.findall(row, PAGE, re.MULTILINE):
        known = {"yes": True, "no": False}.get(retryable)
        yield Row(code=code, case=case, status=int(status), exception=exception, retryable=known)


PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = {(row.code, row.case): row for row in _rows()}


def check(error: openai.APIStatusError, code: str, case: str = "") -> None:
    """What the client raised is what the page says, as exception, status, advice to programs and headers."""
    row, headers = ROWS[code, case], error.response.headers
    assert (type(error).__name__, *code_of(error)) == (row.exception, row.status, code)
    assert isinstance(error.body, dict)
    assert (error.body["retryable"], headers["X-Should-Retry"]) == (row.retryable, str(row.retryable).lower())
    assert ("Retry-After" in headers) is row.retryable
    assert not row.retryable or int(headers["Retry-After"]) >= 1


@contextmanager
def refused(code: str, case: str = "") -> Iterator[None]:
    """What is asked inside is answered with this error, in the words of the page."""
    with pytest.raises(openai.APIStatusError) as caught:
        yield
    check(caught.value, code, case)


@contextmanager
def running(process: EngineProcess) -> Iterator[None]:
    """A stream that runs meanwhile."""
    with client(process.url) as asking:
        stream = asking.completions.create(**LONG, stream=True)
        next(iter(stream))
        yield
        stream.close()


def test_the_page_names_every_reason() -> None:
    assert len(ROWS) == len(re.findall(r"^\| `", PAGE, re.MULTILINE)), "a row that this test cannot read"
    assert {row.code for row in ROWS.values()} == set(RejectionReason.words()) | set(FinishReason.words())


def test_the_page_has_one_exception_for_each_status() -> None:
    pairs = {(row.status, row.exception) for row in ROWS.values()}
    assert len(pairs) == len({status for status, _ in pairs})


def test_every_row_has_a_test_of_its_name() -> None:
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {code for code, _ in ROWS} - ELSEWHERE - {"length", "stop"} <= tests
    assert "length_and_stop" in tests


BAD: list[tuple[str, dict[str, Any]]] = [
    ("", {"prompt": ""}),
    ("no such model", {"model": "another"}),
    ("body over 32 MiB", {"prompt": "x" * (33 << 20)}),
]


@pytest.mark.parametrize(("case", "change"), BAD, ids=[case or "plain" for case, _ in BAD])
def test_bad_request(shared: EngineProcess, case: str, change: dict[str, Any]) -> None:
    with client(shared.url) as asking, refused("bad_request", case):
        asking.completions.create(**SMALL | change)


def test_bad_request_of_a_stranger_and_of_another_tenant(directory: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("acme sk-first\n")
    with engine(directory, "--api-keys", str(keys)) as process:
        with client(process.url, "sk-wrong") as asking, refused("bad_request", "API key"):
            asking.completions.create(**SMALL)
        with client(process.url, "sk-first") as asking, refused("bad_request", "another's tenant"):
            asking.completions.create(**SMALL, extra_headers={"X-Tenant": "other"})


@pytest.mark.parametrize("chat", [False, True])
def test_the_asynchronous_client_raises_the_same(shared: EngineProcess, chat: bool) -> None:
    async def conversation(asking: openai.AsyncOpenAI) -> None:
        async def ask(**change: Any) -> None:
            if chat:
                said: Any = [{"role": "user", "content": change.pop("prompt", "hello")}]
                await asking.chat.completions.create(**{"model": "cell", "messages": said} | change)
            else:
                await asking.completions.create(**SMALL | change)

        cases: list[tuple[str, str, dict[str, Any]]] = [
            ("context_too_long", "", {"max_tokens": 8190}),
            ("exceeds_pool", "", {"max_tokens": 5000}),
            ("bad_request", "no such model", {"model": "another"}),
            ("bad_request", "body over 32 MiB", {"prompt": "x" * (33 << 20)}),
        ]
        for code, case, change in cases:
            with refused(code, case):
                await ask(**change)

    talk_async(shared.url, conversation)


def test_context_too_long(shared: EngineProcess) -> None:
    with client(shared.url) as asking, refused("context_too_long"):
        asking.completions.create(**SMALL | {"max_tokens": 8188})


def test_exceeds_pool(shared: EngineProcess) -> None:
    with client(shared.url) as asking, refused("exceeds_pool"):
        asking.completions.create(**SMALL | {"max_tokens": 5000})


@pytest.fixture(name="budgeted")
def engine_with_a_tenants_file(directory: Path, tmp_path: Path) -> Iterator[EngineProcess]:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[tenants.acme]\nmax_blocks = 100\nmax_waiting = 1\n[tenants.umbrella]\nreserved_blocks = 400\n")
    with engine(directory, "--tenants", str(tenants), "--max-num-seqs", "1", *SLOW) as process:
        yield process


ACME: dict[str, Any] = {"extra_headers": {"X-Tenant": "acme"}}


def test_exceeds_quota(budgeted: EngineProcess) -> None:
    with client(budgeted.url) as asking:
        with refused("exceeds_quota"):
            asking.completions.create(**SMALL | {"max_tokens": 1600}, **ACME)
        assert asking.completions.create(**SMALL, **ACME).choices[0].finish_reason == "length"


def test_tenant_quota(budgeted: EngineProcess) -> None:
    async def conversation(asking: openai.AsyncOpenAI) -> None:
        waiting = asyncio.create_task(asking.completions.create(**SMALL, user="acme"))
        while budgeted.gauge("waiting") < 1:
            await asyncio.sleep(0.005)
        with pytest.raises(openai.RateLimitError) as caught:
            await asking.completions.create(**SMALL, user="acme")
        check(caught.value, "tenant_quota")
        waiting.cancel()

    with running(budgeted):
        talk_async(budgeted.url, conversation)


def test_a_contradiction_in_the_tenants_file_ends_the_command_with_the_numbers(directory: Path, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("[tenants.acme]\nreserved_blocks = 30\nmax_blocks = 20\n")
    with (
        pytest.raises(AssertionError, match=r"reserved_blocks=30 is more than max_blocks=20"),
        engine(directory, "--tenants", str(tenants)),
    ):
        pass


def test_queue_full(directory: Path) -> None:
    async def conversation(asking: Client) -> None:
        waiting = asyncio.create_task(asking.complete(**LONG))
        while process.gauge("waiting") < 1:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(ask)
        waiting.cancel()

    def ask() -> None:
        with client(process.url) as official, refused("queue_full"):
            official.completions.create(**SMALL)

    with engine(directory, *ONE) as process, running(process):
        talk(process.url, conversation)


@pytest.mark.parametrize("own", [False, True])
def test_queue_timeout(directory: Path, own: bool) -> None:
    flags, body = (ONE, {"queue_timeout": 0.1}) if own else ((*ONE, "--queue-timeout", "0.1"), {})
    with engine(directory, *flags) as process, running(process), client(process.url) as asking:
        with refused("queue_timeout"):
            asking.completions.create(**SMALL, extra_body=body)
        assert process.counter("rejections_total", reason="queue_timeout") == 1
        assert process.gauge("running") == 1


def test_draining(directory: Path) -> None:
    with engine(directory, *ONE) as process, client(process.url) as asking:
        with running(process):
            process.signal(signal.SIGTERM)
            eventually(lambda: not _healthy(asking), "the engine drains")
            with refused("draining"):
                asking.completions.create(**SMALL)
        assert process.wait()[0] == 0


def _healthy(asking: openai.OpenAI) -> bool:
    root = str(asking.base_url).removesuffix("/v1/")
    return bool(asking._client.get(f"{root}/health").status_code == 200)


@pytest.mark.parametrize("own", [False, True])
def test_run_timeout(directory: Path, own: bool) -> None:
    flags, body = (ONE, {"run_timeout": 0.1}) if own else ((*ONE, "--run-timeout", "0.1"), {})
    with engine(directory, *flags) as process, client(process.url) as asking:
        with refused("run_timeout"):
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
        with client(process.url) as asking, refused("pool_exhausted"):
            asking.completions.create(**SMALL | {"prompt": [7] * 200})


def test_cancelled(directory: Path) -> None:
    async def conversation(asking: openai.AsyncOpenAI) -> None:
        asked = asyncio.create_task(asking.completions.create(**LONG))
        while process.gauge("running") < 1:
            await asyncio.sleep(0.005)
        process.signal(signal.SIGTERM)
        with refused("cancelled"):
            await asked

    with engine(directory, *ONE, "--drain-timeout", "0.1") as process:
        talk_async(process.url, conversation)
        assert process.wait()[0] == 0


def test_cancelled_by_an_abort(shared: EngineProcess) -> None:
    async def conversation(asking: openai.AsyncOpenAI) -> None:
        asked = asyncio.create_task(asking.completions.create(**LONG, extra_headers={"X-Request-Id": "gone"}))
        while shared.gauge("running") < 1:
            await asyncio.sleep(0.005)
        await asking.post("/abort", body={"id": "cmpl-gone"}, cast_to=object)
        with refused("cancelled", "`POST /v1/abort`"):
            await asked

    talk_async(shared.url, conversation)


def test_an_error_in_a_stream_that_has_begun_says_the_same(directory: Path) -> None:
    with engine(directory, *ONE) as process, client(process.url) as asking:
        stream = asking.completions.create(**LONG, stream=True, extra_body={"run_timeout": 0.2})
        with pytest.raises(openai.APIError) as caught:
            list(stream)
    assert (type(caught.value), caught.value.code) == (openai.APIError, "run_timeout")
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["retryable"] is ROWS["run_timeout", ""].retryable


def test_engine_error(directory: Path) -> None:
    with engine(directory, *ONE) as process:
        with client(process.url) as asking:
            os.kill(process.core.pid, signal.SIGKILL)
            assert process.core.ended_within(10)
            with refused("engine_error"):
                asking.completions.create(**SMALL)
        assert process.stop()[0] == 1


@pytest.mark.parametrize("reason", ["length", "stop"])
def test_length_and_stop(shared: EngineProcess, reason: str) -> None:
    with client(shared.url) as asking:
        whole = asking.completions.create(**SMALL).choices[0].text
        more: dict[str, Any] = {"stop": whole[:1]} if reason == "stop" else {}
        assert asking.completions.create(**SMALL, **more).choices[0].finish_reason == reason
