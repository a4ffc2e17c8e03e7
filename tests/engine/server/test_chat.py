"""Chats with the official client: whole and streamed, blocking and not, and errors as the client's own exceptions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from kvledger_engine.arrival import Arrival, BadBody
from kvledger_engine.body import Asked, Served
from kvledger_engine.chat import parse_chat
from kvledger_engine.quotafile import parse_quotas
from kvledger_engine.template import ChatTemplate
from kvledger_engine.tokenizer import ByteTokenizer
from tests.engine.server.openais import client, code_of, talk_async
from tests.engine.server.process import EngineProcess

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "How many "}, {"type": "text", "text": "blocks?"}]},
]
PROMPT = "system: Be short.\nuser: How many blocks?\nassistant:"
SERVED = Served(
    model="cell",
    vocab_size=256,
    max_model_len_tokens=4096,
    tokenizer=ByteTokenizer(),
    template=ChatTemplate("{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"),
)


def parse(served: Served = SERVED, **body: Any) -> Asked:
    raw = json.dumps({"messages": [{"role": "user", "content": "hi"}], **body}).encode()
    return parse_chat(raw, Arrival(headers={}, request_id="chatcmpl-x", arrived_ns=5), served)


# -- what a body becomes ----------------------------------------------------------------------------------------------


def test_messages_become_a_prompt_through_the_template() -> None:
    assert bytes(parse().request.prompt) == b"user=hi;"
    assert bytes(parse(messages=[{"role": "user", "content": None}]).request.prompt) == b"user=;"


def test_what_is_not_limited_gets_all_that_context_and_pool_leave() -> None:
    assert parse().request.max_tokens == 4096 - 8
    assert parse(max_tokens=5).request.max_tokens == 5
    assert parse(max_tokens=5, max_completion_tokens=7).request.max_tokens == 7
    small = Served(**{name: getattr(SERVED, name) for name in SERVED.__slots__} | {"capacity_tokens": 108})
    assert parse(small).request.max_tokens == 100
    assert parse(small, n=4).request.max_tokens == 25


def test_what_is_not_limited_gets_no_more_than_its_tenant_and_class_can_have() -> None:
    tenants = {"acme": {"max_blocks": 7}, "brief": {"max_context": 50}}
    quotas = parse_quotas({"tenants": tenants, "classes": {"interactive": {"max_context": 30}}})
    served = replace(SERVED, capacity_tokens=1000, block_size_tokens=10, quotas=quotas)
    assert [parse(served, user=user).request.max_tokens for user in ("acme", "brief", "other")] == [62, 42, 992]
    raw = b'{"messages": [{"role": "user", "content": "hi"}], "user": "acme"}'
    arrival = Arrival(headers={"X-Class": "interactive"}, request_id="chatcmpl-x", arrived_ns=5)
    assert parse_chat(raw, arrival, served).request.max_tokens == 22


def test_scores_are_asked_for_in_the_shape_of_chats() -> None:
    assert parse().request.logprobs is None
    assert parse(logprobs=True).request.logprobs == 0
    assert parse(logprobs=True, top_logprobs=20).request.logprobs == 20


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_what_is_not_done_here_is_refused_with_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(BadBody) as caught:
        parse(**body)
    assert (caught.value.decided.status, caught.value.param) == (400, param)


def test_what_changes_nothing_is_taken() -> None:
    assert parse(tools=[], response_format={"type": "text"}, presence_penalty=0, logit_bias={}).request.max_tokens


def test_a_checkpoint_without_a_template_says_so() -> None:
    bare = Served(model="m", vocab_size=256, max_model_len_tokens=64, tokenizer=ByteTokenizer())
    with pytest.raises(BadBody, match=r"chat_template\.jinja"):
        parse(bare)


def test_messages_that_the_template_makes_nothing_of_are_an_empty_prompt() -> None:
    silent = replace(SERVED, template=ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"))
    with pytest.raises(BadBody, match="messages is empty, it has no token") as caught:
        parse(silent, messages=[{"role": "user", "content": ""}])
    assert caught.value.param == "messages"


# -- the official client ----------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.needs("tmpfs")
class TestClient:
    def test_a_chat_is_the_completion_of_its_documented_prompt(self, shared: EngineProcess) -> None:
        with client(shared.url) as asking:
            chat = asking.chat.completions.create(model="cell", messages=MESSAGES, max_tokens=24, temperature=0)
            plain = asking.completions.create(model="cell", prompt=PROMPT, max_tokens=24, temperature=0)
        (choice,) = chat.choices
        assert (choice.message.role, choice.message.content) == ("assistant", plain.choices[0].text)
        assert choice.finish_reason == "length"
        assert chat.object == "chat.completion"
        assert chat.id.startswith("chatcmpl-")
        assert chat.usage is not None
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (len(PROMPT), 24)

    def test_a_streamed_chat_begins_with_the_role_and_brings_the_same_text(self, shared: EngineProcess) -> None:
        with client(shared.url) as asking:
            whole = asking.chat.completions.create(
                model="cell", messages=MESSAGES, max_tokens=24, n=2, temperature=1, seed=3
            )
            stream = asking.chat.completions.create(
                model="cell",
                messages=MESSAGES,
                max_tokens=24,
                n=2,
                temperature=1,
                seed=3,
                stream=True,
                stream_options={"include_usage": True},
            )
            *chunks, last = list(stream)
        texts, reasons = ["", ""], {}
        assert [chunk.choices[0].delta.role for chunk in chunks[:2]] == ["assistant", "assistant"]
        for chunk in chunks:
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason
            assert chunk.object == "chat.completion.chunk"
        assert texts == [choice.message.content for choice in whole.choices]
        assert reasons == {0: "length", 1: "length"}
        assert last.choices == []
        assert last.usage is not None
        assert whole.usage is not None
        # How much of the prompt was cached depends on who asked before.
        counts = [(used.prompt_tokens, used.completion_tokens, used.total_tokens) for used in (last.usage, whole.usage)]
        assert counts == [(len(PROMPT), 48, len(PROMPT) + 48)] * 2

    def test_the_asynchronous_client_gets_the_same_whole_and_streamed(self, shared: EngineProcess) -> None:
        async def conversation(asking: openai.AsyncOpenAI) -> None:
            whole = await asking.chat.completions.create(model="cell", messages=MESSAGES, max_tokens=9, temperature=0)
            stream = await asking.chat.completions.create(
                model="cell", messages=MESSAGES, max_tokens=9, temperature=0, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == whole.choices[0].message.content
            plain = await asking.completions.create(model="cell", prompt=PROMPT, max_tokens=9, temperature=0)
            pieces = await asking.completions.create(
                model="cell", prompt=PROMPT, max_tokens=9, temperature=0, stream=True
            )
            assert "".join([chunk.choices[0].text async for chunk in pieces]) == plain.choices[0].text == text

        talk_async(shared.url, conversation)

    def test_the_client_lists_the_model(self, shared: EngineProcess) -> None:
        with client(shared.url) as asking:
            assert [model.id for model in asking.models.list()] == ["cell"]

    def test_refusals_are_the_clients_own_exceptions(self, shared: EngineProcess) -> None:
        with client(shared.url) as asking:
            with pytest.raises(openai.BadRequestError) as refused:
                asking.chat.completions.create(model="cell", messages=MESSAGES, max_tokens=9000)
            assert code_of(refused.value) == (400, "context_too_long")
            with pytest.raises(openai.NotFoundError) as unknown:
                asking.chat.completions.create(model="another", messages=MESSAGES)
            assert code_of(unknown.value) == (404, "bad_request")
            with pytest.raises(openai.BadRequestError) as unsupported:
                asking.chat.completions.create(model="cell", messages=MESSAGES, logprobs=True)
            assert (unsupported.value.param, unsupported.value.code) == ("logprobs", "bad_request")

    def test_a_chat_without_a_limit_takes_what_the_pool_leaves(self, shared: EngineProcess) -> None:
        with client(shared.url) as asking:
            stream = asking.chat.completions.create(model="cell", messages=MESSAGES, stream=True)
            next(iter(stream))
            assert shared.sample().slots.max_tokens.tolist() == [256 * 16 - len(PROMPT)]
            stream.close()
