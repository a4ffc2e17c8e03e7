"""What a body and its headers become for the core. Refused bodies are tested over HTTP in test_refusals."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_engine.arrival import Arrival, BadBody, malformed, request_id_of
from kvledger_engine.body import LONG_PROMPT_TOKENS, Asked, Served
from kvledger_engine.completion import parse_completion
from kvledger_engine.tokenizer import ByteTokenizer

SERVED = Served(model="cell", vocab_size=256, max_model_len_tokens=4096, tokenizer=ByteTokenizer())


def arrival(headers: dict[str, str]) -> Arrival:
    return Arrival(headers=headers, request_id="cmpl-x", arrived_ns=5)


def parse(body: object, **headers: str) -> Asked:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse_completion(json.dumps(body).encode(), arrival(named), SERVED)


def test_what_is_left_out_has_openais_defaults() -> None:
    completion = parse({"prompt": "hi"})
    request = completion.request
    assert (request.prompt, request.max_tokens, request.n, request.temperature) == ([104, 105], 16, 1, 1.0)
    assert (request.tenant, request.request_class, request.salt, request.stop_tokens) == ("default", "default", "", [])
    assert (request.request_id, request.arrived_ns) == ("cmpl-x", 5)
    assert (completion.stream, completion.include_usage) == (False, False)


def test_null_means_the_default_as_it_does_for_openai() -> None:
    names = ("model", "max_tokens", "n", "temperature", "seed", "stream", "stream_options", "user", "stop", "logprobs")
    with_nulls = parse({"prompt": "hi", **dict.fromkeys(names)}).request
    assert (with_nulls.max_tokens, with_nulls.n, with_nulls.temperature) == (16, 1, 1.0)


def test_fields_that_are_not_known_are_ignored() -> None:
    assert parse({"prompt": "hi", "min_p": 0.9, "best_of": 3}).request.prompt == [104, 105]


def test_the_models_end_tokens_stop_a_request_unless_it_ignores_them() -> None:
    served = replace(SERVED, eos_token_ids=[2, 7])

    def stops(**fields: object) -> list[int]:
        body = json.dumps({"prompt": "hi", **fields}).encode()
        return parse_completion(body, arrival({}), served).request.stop_tokens

    assert stops() == [2, 7]
    assert stops(stop_token_ids=[9, 7]) == [2, 7, 9]
    assert stops(ignore_eos=True) == []
    assert stops(ignore_eos=True, stop_token_ids=[9]) == [9]


def test_a_seed_is_drawn_only_where_it_matters_and_none_is_given() -> None:
    assert parse({"prompt": "hi", "temperature": 0}).request.seed == 0
    assert parse({"prompt": "hi", "seed": 7}).request.seed == 7
    assert len({parse({"prompt": "hi"}).request.seed for _ in range(8)}) > 1


def test_the_tenant_is_the_header_else_the_user_and_the_class_is_the_header() -> None:
    assert parse({"prompt": "hi", "user": "u"}).request.tenant == "u"
    assert parse({"prompt": "hi", "user": "u"}, X_Tenant="t").request.tenant == "t"
    assert parse({"prompt": "hi"}, X_Class="batch").request.request_class == "batch"
    assert malformed(arrival({"X-Tenant": "t"})).tenant == "t"
    assert malformed(arrival({"X-Tenant": "\n"})).tenant == "default"


def test_a_salt_keeps_the_prefixes_of_those_who_send_it_apart() -> None:
    assert parse({"prompt": "hi", "cache_salt": "ours"}).request.salt == "ours"
    assert parse({"prompt": "hi", "cache_salt": None}).request.salt == ""


def test_a_prompt_that_no_context_holds_is_cut_where_the_verdict_is_certain() -> None:
    assert len(parse({"prompt": "x" * (LONG_PROMPT_TOKENS + 500)}).request.prompt) == LONG_PROMPT_TOKENS + 1
    assert len(parse({"prompt": "x" * 5000}).request.prompt) == 5000


@given(st.text(max_size=50))
def test_any_text_is_its_bytes_or_a_typed_refusal(text: str) -> None:
    body = json.dumps({"prompt": text}).encode()
    try:
        expected = list(text.encode())
    except UnicodeEncodeError:
        expected = []
    if not expected:
        with pytest.raises(BadBody):
            parse_completion(body, arrival({}), SERVED)
        return
    assert parse_completion(body, arrival({}), SERVED).request.prompt == expected


@given(st.binary(max_size=80))
def test_any_bytes_are_a_request_or_a_typed_refusal(body: bytes) -> None:
    # Any other exception fails the test.
    with suppress(BadBody):
        parse_completion(b'{"prompt": ' + body + b"}", arrival({}), SERVED)


@pytest.mark.parametrize("text", ['"\\ud800"', '["\\ud800"]', '"\\udc00x"'])
def test_half_a_character_is_a_typed_refusal(text: str) -> None:
    with pytest.raises(BadBody) as caught:
        parse_completion(b'{"prompt": ' + text.encode() + b"}", arrival({}), SERVED)
    assert caught.value.decided.status == 400


@pytest.mark.parametrize("field", ["max_tokens", "seed", "stop_token_ids", "prompt"])
def test_a_number_that_no_frame_can_carry_is_a_typed_refusal_of_its_field(field: str) -> None:
    value = [1 << 80] if field in ("stop_token_ids", "prompt") else 1 << 80
    with pytest.raises(BadBody) as caught:
        parse({"prompt": [1], field: value})
    assert (caught.value.decided.status, caught.value.param) == (400, field)


@pytest.mark.parametrize("body", ['{"prompt": %s}', '{"prompt": [1], "user": %s}', '{"prompt": [1], "x": %s}'])
def test_a_deeply_nested_body_is_a_typed_refusal(body: str) -> None:
    nested = body % ("[" * 100_000 + "]" * 100_000)
    with pytest.raises(BadBody):
        parse_completion(nested.encode(), arrival({}), SERVED)


def test_a_plain_client_id_is_kept_and_any_other_is_replaced() -> None:
    assert request_id_of({"X-Request-Id": "job-17.a"}, "cmpl") == "cmpl-job-17.a"
    for odd in ("", "a b", "x" * 129, "a\u00e9"):
        assert request_id_of({"X-Request-Id": odd}, "cmpl") not in ("cmpl-", f"cmpl-{odd}")
        assert len(request_id_of({"X-Request-Id": odd}, "cmpl")) == len("cmpl-") + 24
