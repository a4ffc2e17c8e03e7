"""Every refusal that can be reached has its status, code and advice, and the core has counted it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.server.client import Answer, Client, first_event, talk
from tests.engine.server.process import EngineProcess, engine, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

SLOW = ("--max-num-seqs", "1", "--max-waiting", "1", "--step-time", "base=5ms")


@pytest.fixture
def crowded(directory: Path) -> Iterator[EngineProcess]:
    """An engine that runs one sequence, slowly, and lets one wait."""
    with engine(directory, *SLOW) as process:
        yield process
        assert process.stop()[0] == 0


def rejections(process: EngineProcess, reason: str) -> float:
    return process.counter("rejections_total", reason=reason)


def check(answer: Answer, status: int, code: str, *, retryable: bool, param: str | None = None) -> None:
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)
    assert answer.error["retryable"] is retryable
    assert ("Retry-After" in answer.headers) is retryable
    assert answer.error["message"]
    assert answer.error["type"].endswith("_error")


BODY: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}
# The shared engine: 256 blocks of 16 tokens, a context of 8,192 tokens.
TOO_LARGE_FOR: list[tuple[str, dict[str, Any]]] = [
    ("context_too_long", {"max_tokens": 8190}),
    ("context_too_long", {"prompt": "x" * 9000}),
    ("context_too_long", {"prompt": "x" * 2_000_000}),
    ("exceeds_pool", {"max_tokens": 5000}),
]
MALFORMED: list[tuple[str, str | None, dict[str, str]]] = [
    ("", None, {}),
    ("{", None, {}),
    ("[]", None, {}),
    ('{"max_tokens": 3}', "prompt", {}),
    (json.dumps(BODY | {"prompt": {"a": 1}}), "prompt", {}),
    (json.dumps(BODY | {"prompt": [1, "a"]}), "prompt", {}),
    (json.dumps(BODY | {"prompt": ["a", "b"]}), "prompt", {}),
    (json.dumps(BODY | {"prompt": [-1]}), "prompt", {}),
    (json.dumps(BODY | {"prompt": [256]}), "prompt", {}),
    (json.dumps(BODY | {"prompt": [1 << 70]}), "prompt", {}),
    (json.dumps(BODY | {"max_tokens": "many"}), "max_tokens", {}),
    (json.dumps(BODY | {"max_tokens": 0}), "max_tokens", {}),
    (json.dumps(BODY | {"n": 0}), "n", {}),
    (json.dumps(BODY | {"temperature": -1}), "temperature", {}),
    (json.dumps(BODY | {"stop": ["a", "b", "c", "d", "e"]}), "stop", {}),
    (json.dumps(BODY | {"stop": ["a", ""]}), "stop", {}),
    (json.dumps(BODY | {"top_p": 0.5}), "top_p", {}),
    (json.dumps(BODY | {"top_p": 1.5}), "top_p", {}),
    (json.dumps(BODY | {"logprobs": 2}), "logprobs", {}),
    (json.dumps(BODY | {"logprobs": 6}), "logprobs", {}),
    (json.dumps(BODY | {"presence_penalty": 0.5}), "presence_penalty", {}),
    (json.dumps(BODY | {"logit_bias": {"1": 5}}), "logit_bias", {}),
    (json.dumps(BODY)[:-1] + ', "temperature": NaN}', "temperature", {}),
    (json.dumps(BODY)[:-1] + ', "temperature": 1e999}', "temperature", {}),
    (json.dumps(BODY | {"queue_timeout": 0}), "queue_timeout", {}),
    (json.dumps(BODY)[:-1] + ', "run_timeout": 1e999}', "run_timeout", {}),
    (json.dumps(BODY | {"prompt": ""}), "prompt", {}),
    (json.dumps(BODY | {"echo": True}), "echo", {}),
    (json.dumps(BODY | {"user": "u" * 65}), "user", {}),
    (json.dumps(BODY), "X-Class", {"X-Class": "royal"}),
    (json.dumps(BODY), "X-Tenant", {"X-Tenant": "t" * 65}),
    (json.dumps(BODY | {"prompt": []}), "prompt", {}),
    (json.dumps(BODY | {"n": 17}), None, {}),
]


@pytest.mark.parametrize(("reason", "change"), TOO_LARGE_FOR)
@pytest.mark.parametrize("stream", [False, True])
def test_what_can_never_fit_is_refused_for_good(
    shared: EngineProcess, reason: str, change: dict[str, Any], stream: bool
) -> None:
    before = rejections(shared, reason)

    async def conversation(client: Client) -> None:
        answer = await client.complete(**(BODY | change | {"stream": stream}))
        check(answer, 400, reason, retryable=False)

    talk(shared.url, conversation)
    assert rejections(shared, reason) == before + 1


@pytest.mark.parametrize(("body", "param", "headers"), MALFORMED)
def test_a_malformed_request_is_refused_with_the_field_and_counted_in_the_core(
    shared: EngineProcess, body: str, param: str | None, headers: dict[str, str]
) -> None:
    before = rejections(shared, "bad_request")

    async def conversation(client: Client) -> None:
        check(await client.post(body, headers), 400, "bad_request", retryable=False, param=param)

    talk(shared.url, conversation)
    assert rejections(shared, "bad_request") == before + 1


NO_NUMBER = "is no JSON number: send a finite one"
EMPTY = "prompt is empty, it has no token: send at least one"
NAMED: list[tuple[str, str | None, str]] = [
    (json.dumps(BODY | {"temperature": float("nan")}), "temperature", f"temperature: NaN {NO_NUMBER}"),
    (json.dumps(BODY | {"top_p": float("-inf"), "user": "é"}), "top_p", f"top_p: -Infinity {NO_NUMBER}"),
    (json.dumps(BODY | {"prompt": [float("inf")]}), None, f"the body: Infinity {NO_NUMBER}"),
    (json.dumps(BODY | {"prompt": []}), "prompt", EMPTY),
    (json.dumps(BODY | {"prompt": ""}), "prompt", EMPTY),
    (json.dumps(BODY | {"prompt": [[]]}), "prompt", EMPTY),
    (json.dumps(BODY | {"temperature": 2.5}), "temperature", "Expected `float` <= 2.0 - at `$.temperature`"),
    (json.dumps(BODY | {"user": "NaN"})[:-1], None, "Input data was truncated"),
]


@pytest.mark.parametrize(("body", "param", "message"), NAMED)
def test_the_message_names_what_is_wrong(shared: EngineProcess, body: str, param: str | None, message: str) -> None:
    async def conversation(client: Client) -> None:
        answer = await client.post(body)
        check(answer, 400, "bad_request", retryable=False, param=param)
        assert answer.error["message"] == message

    talk(shared.url, conversation)


def test_an_unknown_model_is_not_found_and_counted(shared: EngineProcess) -> None:
    before = rejections(shared, "bad_request")

    async def conversation(client: Client) -> None:
        check(await client.complete(**BODY, model="another"), 404, "bad_request", retryable=False, param="model")

    talk(shared.url, conversation)
    assert rejections(shared, "bad_request") == before + 1


def test_exactly_the_context_is_answered_and_a_token_more_is_refused_not_clamped(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        # The shared engine's pool, 4,096 tokens, is smaller than its context, 8,192: one limit after the other.
        fits = await client.complete(prompt=[1] * 4090, max_tokens=6, temperature=0)
        assert (fits.status, fits.document["usage"]["total_tokens"]) == (200, 4096)
        over_pool = await client.complete(prompt=[1] * 4090, max_tokens=7)
        check(over_pool, 400, "exceeds_pool", retryable=False)
        assert over_pool.error["message"] == (
            "The request may need 257 blocks and the whole pool has 256: "
            "shorten it, ask for fewer tokens or sequences, or use a larger replica."
        )
        check(await client.complete(prompt=[1] * 8190, max_tokens=2), 400, "exceeds_pool", retryable=False)
        over = await client.complete(prompt=[1] * 8190, max_tokens=3)
        check(over, 400, "context_too_long", retryable=False)
        assert over.error["message"] == (
            "Prompt (8190) and max_tokens (3) make 8193 tokens, the context holds 8192: "
            "shorten the prompt or ask for fewer tokens."
        )

    talk(shared.url, conversation)
    eventually(shared.holds_nothing, "nothing is held")


def test_a_refusal_is_counted_for_its_tenant_even_if_its_body_cannot_be_read(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        assert (await client.post("{", {"X-Tenant": "careless"})).status == 400

    talk(shared.url, conversation)
    counted = shared.sample().stats.tenant_counter("tenant_rejections_total")
    assert counted is not None
    assert counted["careless"] == 1


def test_a_malformed_request_under_the_id_of_an_open_one_is_counted_and_leaves_that_one_alone(
    shared: EngineProcess,
) -> None:
    before = rejections(shared, "bad_request")
    headers = {"X-Request-Id": "busy"}

    async def conversation(client: Client) -> None:
        async with client.streaming(headers=headers, **(BODY | {"max_tokens": 3000})) as running:
            await first_event(running)
            check(await client.post("{", headers), 400, "bad_request", retryable=False)
            await first_event(running)

    talk(shared.url, conversation)
    assert rejections(shared, "bad_request") == before + 1


@pytest.mark.parametrize("size", [33 << 20, 100_000_000])
def test_a_body_beyond_the_limit_is_refused_as_too_large_and_counted(shared: EngineProcess, size: int) -> None:
    before = rejections(shared, "bad_request")

    async def conversation(client: Client) -> None:
        check(await client.post(b" " * size), 413, "bad_request", retryable=False)

    talk(shared.url, conversation)
    assert rejections(shared, "bad_request") == before + 1


def test_an_unknown_path_and_a_wrong_method_are_answered_in_the_same_shape(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        check(await client.get("/v1/chat"), 404, "not_found", retryable=False)
        check(await client.get("/v1/completions"), 405, "method_not_allowed", retryable=False)

    talk(shared.url, conversation)


def test_a_full_queue_is_refused_with_advice_to_come_back(crowded: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        body = BODY | {"max_tokens": 2000}
        async with client.streaming(**body) as running:
            await first_event(running)
            waiting = asyncio.create_task(client.complete(**body))
            while crowded.gauge("waiting") < 1:
                await asyncio.sleep(0.005)
            check(await client.complete(**BODY), 429, "queue_full", retryable=True)
            waiting.cancel()

    talk(crowded.url, conversation)
    assert rejections(crowded, "queue_full") == 1
