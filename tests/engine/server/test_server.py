"""Completions over HTTP against a real engine: clients get what they ask for, and one that leaves frees everything."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.server.client import Client, first_event, talk
from tests.engine.server.process import EngineProcess, engine, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

GREEDY: dict[str, Any] = {"prompt": "the ledger", "max_tokens": 24, "temperature": 0}
ENDLESS: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 3000, "temperature": 0}


def test_a_completion_is_answered_whole_with_its_usage(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        answer = await client.complete(**GREEDY)
        assert answer.status == 200
        (choice,) = answer.document["choices"]
        assert (len(choice["text"]) > 0, choice["finish_reason"], choice["index"]) == (True, "length", 0)
        usage = answer.document["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 24, 34)
        assert (answer.document["object"], answer.document["model"]) == ("text_completion", "cell")

    talk(shared.url, conversation)


def test_a_stream_brings_the_same_text_with_one_event_for_each_token(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        whole, streamed = await client.complete(**GREEDY), await client.stream(**GREEDY)
        assert streamed.texts == whole.texts
        assert streamed.headers["Content-Type"].startswith("text/event-stream")
        assert streamed.done
        reasons = [event["choices"][0]["finish_reason"] for event in streamed.events]
        assert reasons == [None] * 24 + ["length"]
        assert all("usage" not in event for event in streamed.events)

    talk(shared.url, conversation)


def test_a_stream_ends_with_its_usage_when_asked_to(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        streamed = await client.stream(**GREEDY, stream_options={"include_usage": True})
        *chunks, last = streamed.events
        assert last["choices"] == []
        assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (10, 24)
        assert [chunk["usage"] for chunk in chunks] == [None] * 25

    talk(shared.url, conversation)


@pytest.mark.parametrize("how", ["whole", "streamed"])
def test_n_sequences_are_those_of_single_requests_with_seeds_counted_up(shared: EngineProcess, how: str) -> None:
    async def conversation(client: Client) -> None:
        body: dict[str, Any] = {"prompt": "four ways from here", "max_tokens": 40, "temperature": 1.0}
        ask = client.complete if how == "whole" else client.stream
        forked = await ask(**body, seed=7, n=4)
        singles = [(await client.complete(**body, seed=7 + index)).texts[0] for index in range(4)]
        assert forked.texts == singles
        assert len(set(singles)) == 4

    talk(shared.url, conversation)


def test_a_prompt_is_a_string_or_token_ids_or_an_array_with_one_of_them(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        ids = list(b"equal")
        prompts: list[Any] = ["equal", ids, ["equal"], [ids]]
        answers = [await client.complete(prompt=prompt, max_tokens=8, temperature=0) for prompt in prompts]
        assert [answer.status for answer in answers] == [200] * 4
        assert len({answer.texts[0] for answer in answers}) == 1

    talk(shared.url, conversation)


def test_generation_stops_at_a_stop_token(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        whole = (await client.complete(**GREEDY)).texts[0]
        plain = next(character for character in whole[1:] if character.isascii())
        stopped = await client.complete(**GREEDY, stop_token_ids=[ord(plain)])
        (choice,) = stopped.document["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["text"] == whole[: whole.index(plain) + 1]

    talk(shared.url, conversation)


def test_two_open_requests_of_one_id_are_both_answered(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        headers = {"X-Request-Id": "twice"}
        answers = await asyncio.gather(*(client.complete(headers=headers, **GREEDY) for _ in range(2)))
        assert [answer.status for answer in answers] == [200, 200]
        ids = [answer.document["id"] for answer in answers]
        assert "cmpl-twice" in ids
        assert len(set(ids)) == 2

    talk(shared.url, conversation)


def test_health_and_models_say_what_is_served(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        health, models = await client.get("/health"), await client.get("/v1/models")
        assert (health.status, health.document) == (200, {"status": "ok"})
        (model,) = models.document["data"]
        assert (model["id"], model["max_model_len"]) == ("cell", 8192)

    talk(shared.url, conversation)


def test_a_client_that_leaves_mid_stream_gives_every_block_back(shared: EngineProcess) -> None:
    before = shared.counter("cancellations_total", cause="disconnect")

    async def conversation(client: Client) -> None:
        async with client.streaming(**ENDLESS) as response:
            await first_event(response)
            assert shared.gauge("active_blocks") > 0

    talk(shared.url, conversation)
    eventually(shared.holds_nothing, "no block is held for a client that left")
    assert shared.counter("cancellations_total", cause="disconnect") == before + 1


def test_a_client_that_leaves_without_streaming_gives_every_block_back(shared: EngineProcess) -> None:
    before = shared.counter("cancellations_total", cause="disconnect")

    async def conversation(client: Client) -> None:
        asking = asyncio.create_task(client.complete(**ENDLESS))
        while shared.gauge("active_blocks") == 0:
            await asyncio.sleep(0.005)
        asking.cancel()

    talk(shared.url, conversation)
    eventually(shared.holds_nothing, "no block is held for a client that left")
    assert shared.counter("cancellations_total", cause="disconnect") == before + 1


def test_two_thousand_connections_opened_and_dropped_leave_nothing_held(shared: EngineProcess) -> None:
    before = shared.counter("cancellations_total", cause="disconnect")

    async def ask_and_leave(client: Client, number: int) -> None:
        body = {"prompt": [number % 200, 1, 2, 3], "max_tokens": 2000, "temperature": 0, "stream": number % 2 == 0}
        reader, writer = await asyncio.open_connection(*client.url.removeprefix("http://").split(":"))
        payload = json.dumps(body).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(payload), payload)
        )
        await writer.drain()
        if number % 4 == 0:
            # Among the first to be admitted these have seen a token; the others leave while they wait.
            with_token = asyncio.create_task(reader.read(1))
            await asyncio.wait({with_token}, timeout=0.2)
            with_token.cancel()
        writer.close()

    async def conversation(client: Client) -> None:
        for first in range(0, 2000, 200):
            await asyncio.gather(*(ask_and_leave(client, number) for number in range(first, first + 200)))
        assert (await client.get("/health")).status == 200

    talk(shared.url, conversation)
    eventually(shared.holds_nothing, "no block and no slot is held for clients that left")
    sample = shared.sample()
    assert (sample.stats.gauge("running"), sample.stats.gauge("waiting")) == (0, 0)
    assert shared.counter("cancellations_total", cause="disconnect") - before <= 2000
    assert shared.counter("cancellations_total", cause="disconnect") > before


def test_an_idle_core_runs_no_code(shared: EngineProcess) -> None:
    async def conversation(client: Client) -> None:
        await client.complete(**GREEDY)

    talk(shared.url, conversation)
    eventually(lambda: shared.gauge("idle") == 1, "the engine is idle")

    def switches() -> int:
        lines = Path(f"/proc/{shared.core.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)

    async def rest() -> int:
        first = switches()
        await asyncio.sleep(0.5)
        return switches() - first

    assert asyncio.run(rest()) <= 1


def test_prefixes_are_shared_by_those_who_may_and_by_nobody_else(directory: Path, tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text('[tenants.a]\nshare_group = "g"\n[tenants.b]\nshare_group = "g"\n[tenants.c]\n')
    prompt = list(range(65))

    with engine(directory, "--tenants", str(tenants)) as process:

        async def hits(client: Client, tenant: str, **more: Any) -> float:
            """Prompt tokens of one more request that were found cached."""
            before = process.counter("prefix_hit_tokens_total")
            answer = await client.complete(prompt=prompt, max_tokens=2, headers={"X-Tenant": tenant}, **more)
            assert answer.status == 200
            return process.counter("prefix_hit_tokens_total") - before

        async def conversation(client: Client) -> None:
            seen = [await hits(client, tenant) for tenant in ("c", "a", "b", "c", "stranger", "b")]
            assert seen == [0, 0, 64, 64, 0, 64]
            salted = [await hits(client, tenant, cache_salt="s") for tenant in ("a", "b", "c")]
            assert salted == [0, 64, 0]

        talk(process.url, conversation)
        assert process.stop() == (0, "")
