"""Chunks built from ready-made bytes are the JSON that OpenAI's clients expect, whatever the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_engine.messages import Finished
from kvledger_engine.sse import ChunkWriter, usage_of
from kvledger_engine.wire import DRAINING


def document(event: bytes) -> dict[str, Any]:
    """The JSON of one event, which must be framed as one."""
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    found = json.loads(event[6:])
    assert isinstance(found, dict)
    return found


def writer(*, include_usage: bool = False, model: str = 'a "quoted" 100% model') -> ChunkWriter:
    return ChunkWriter(request_id="cmpl-1", created=5, model=model, sequences=3, include_usage=include_usage)


@given(st.text())
def test_every_text_comes_through_as_it_is(text: str) -> None:
    text = text.encode(errors="replace").decode()
    assert document(writer().token(2, text))["choices"][0]["text"] == text
    assert document(writer().finish(2, text, "stop"))["choices"][0]["text"] == text


@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_have_the_shape_of_openai(include_usage: bool) -> None:
    chunks = writer(include_usage=include_usage)
    choice = {"index": 1, "text": "A", "logprobs": None, "finish_reason": None}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": 'a "quoted" 100% model'}
    usage = {"usage": None} if include_usage else {}
    assert document(chunks.token(1, "A")) == head | {"choices": [choice]} | usage
    ended = choice | {"text": "!", "finish_reason": "length"}
    assert document(chunks.finish(1, "!", "length")) == head | {"choices": [ended]} | usage


def test_usage_counts_the_prompt_once_and_the_tokens_of_all_sequences() -> None:
    ends = [
        Finished(request_id="a", index=i, reason="stop", prompt_tokens=9, output_tokens=i + 1, hit_tokens=4)
        for i in range(3)
    ]
    usage = usage_of(ends)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (9, 6, 15)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    last = document(writer(include_usage=True).usage(ends))
    assert (last["choices"], last["usage"]) == ([], usage)


def test_an_error_event_carries_the_error_alone() -> None:
    assert document(ChunkWriter.error(DRAINING)) == json.loads(DRAINING.body)
