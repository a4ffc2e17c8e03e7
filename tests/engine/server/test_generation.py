"""What ends a text and who may ask for it: stop strings, aborts and API keys, with the official client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engine.server.client import Client, first_event, talk
from tests.engine.server.openais import client, code_of, talk_async
from tests.engine.server.process import EngineProcess, engine, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.needs("tmpfs")]

GREEDY: dict[str, Any] = {"model": "cell", "prompt": "the ledger", "max_tokens": 60, "temperature": 0}
ENDLESS: dict[str, Any] = {"prompt": [1, 2, 3], "max_tokens": 3000, "temperature": 0}


# -- stop strings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_text_ends_before_a_stop_string_and_its_blocks_go_back_as_finished_by_stop(
    shared: EngineProcess, stream: bool, chat: bool
) -> None:
    async def conversation(asking: openai.AsyncOpenAI) -> None:
        whole = (await asking.completions.create(**GREEDY)).choices[0].text
        stop = whole[20:23]
        body: dict[str, Any] = {"max_tokens": 3000, "temperature": 0, "stop": ["never", stop], "model": "cell"}
        if stream:
            pieces = await asking.completions.create(prompt="the ledger", stream=True, **body)
            chunks = [chunk async for chunk in pieces]
            text, reason = "".join(c.choices[0].text for c in chunks), chunks[-1].choices[0].finish_reason
        else:
            done = await asking.completions.create(prompt="the ledger", **body)
            text, reason = done.choices[0].text, done.choices[0].finish_reason
            assert done.usage is not None
            assert done.usage.completion_tokens < 60
        assert (text, reason) == (whole[: whole.index(stop)], "stop")
        if chat:
            said = await asking.chat.completions.create(
                messages=[{"role": "user", "content": "x"}], **body | {"stop": "s"}
            )
            assert said.choices[0].finish_reason == "stop"
            assert "s" not in (said.choices[0].message.content or "")

    stopped, cancelled = shared.ended("stop"), shared.ended("cancelled")
    talk_async(shared.url, conversation)
    eventually(shared.holds_nothing, "a text that is complete holds no block")
    assert shared.ended("stop") == stopped + 1 + chat
    assert shared.ended("cancelled") == cancelled


def test_one_of_several_sequences_stops_and_the_others_go_on(shared: EngineProcess) -> None:
    body: dict[str, Any] = {
        "model": "cell",
        "prompt": "four ways",
        "max_tokens": 30,
        "n": 4,
        "temperature": 1,
        "seed": 7,
    }
    with client(shared.url) as asking:
        whole = asking.completions.create(**body)
        stop = whole.choices[2].text[10:13]
        stopped = asking.completions.create(**body, stop=stop)
    for before, after in zip(whole.choices, stopped.choices, strict=True):
        assert after.text == before.text.split(stop)[0]
        assert after.finish_reason == ("stop" if stop in before.text else "length")


# -- aborts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_ends_a_request_by_its_id_with_every_block_back_and_tells_its_client(
    shared: EngineProcess, stream: bool
) -> None:
    before = shared.counter("cancellations_total", cause="api")

    async def conversation(asking: Client) -> None:
        ask = asking.stream if stream else asking.complete
        running = asyncio.create_task(ask(headers={"X-Request-Id": "unwanted"}, **ENDLESS))
        while shared.gauge("running") == 0:
            await asyncio.sleep(0.005)
        abort, unwanted = f"{asking.url}/v1/abort", {"id": "cmpl-unwanted"}
        async with asking.session.post(abort, json=unwanted) as response:
            assert (response.status, await response.json()) == (200, unwanted | {"aborted": True})
        answer = await running
        assert (answer.error["code"], answer.error["retryable"]) == ("cancelled", False)
        assert answer.status == (200 if stream else 503)
        async with asking.session.post(abort, json=unwanted) as response:
            assert response.status == 404

    talk(shared.url, conversation)
    eventually(shared.holds_nothing, "an aborted request holds nothing")
    assert shared.counter("cancellations_total", cause="api") == before + 1


@pytest.mark.parametrize(("body", "status"), [('{"id": "cmpl-nobody"}', 404), ("{}", 400), ("[", 400)])
def test_an_abort_of_nothing_says_so(shared: EngineProcess, body: str, status: int) -> None:
    async def conversation(asking: Client) -> None:
        async with asking.session.post(f"{asking.url}/v1/abort", data=body) as response:
            assert response.status == status
            assert (await response.json())["error"]["retryable"] is False

    talk(shared.url, conversation)


# -- API keys ---------------------------------------------------------------------------------------------------------


def test_with_a_key_file_the_keys_name_is_the_tenant_and_nobody_else_gets_in(directory: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# name key\nacme sk-first\n\nother sk-second\n")
    with engine(directory, "--api-keys", str(keys)) as process:
        with client(process.url, "sk-first") as acme:
            acme.completions.create(model="cell", prompt="hi", max_tokens=2, user="somebody")
            assert [model.id for model in acme.models.list()] == ["cell"]
            with pytest.raises(openai.PermissionDeniedError) as foreign:
                acme.completions.create(model="cell", prompt="hi", extra_headers={"X-Tenant": "other"})
            assert code_of(foreign.value) == (403, "bad_request")
        with client(process.url, "sk-wrong") as stranger:
            for ask in (lambda: stranger.completions.create(model="cell", prompt="hi"), stranger.models.list):
                with pytest.raises(openai.AuthenticationError) as refused:
                    ask()
                assert code_of(refused.value) == (401, "bad_request")
                assert "sk-" not in str(refused.value)

        async def conversation(asking: Client) -> None:
            first, second = ({"Authorization": f"Bearer {key}"} for key in ("sk-first", "sk-second"))
            async with asking.streaming(headers=first | {"X-Request-Id": "mine"}, **ENDLESS) as running:
                await first_event(running)
                abort, mine = f"{asking.url}/v1/abort", {"id": "cmpl-mine"}
                async with asking.session.post(abort, json=mine, headers=second) as response:
                    assert response.status == 404
                async with asking.session.post(abort, json=mine, headers=first) as response:
                    assert response.status == 200
            assert (await asking.get("/health")).status == 200

        talk(process.url, conversation)
        ended = process.sample().stats.tenant_counter("requests_total", finish_reason="length")
        assert ended is not None
        assert {name: value for name, value in ended.items() if value} == {"acme": 1}
        assert process.counter("rejections_total", reason="bad_request") == 2
        eventually(process.holds_nothing, "nothing is held")
        arguments = Path(f"/proc/{process.core.pid}/cmdline").read_bytes()
        assert b"sk-" not in arguments
        code, log = process.stop()
        assert (code, "sk-" in log) == (0, False)
