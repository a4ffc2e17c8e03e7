"""A stream means the same however the network cuts it, and nothing a peer sends can raise."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger_agent.load.outcome import Ending, EndKind, ending_of_status, failed
from kvledger_agent.load.stream import CompletionStream, gaps_seconds
from tests.load.endpoint import chunk, event

DONE = b"data: [DONE]\n\n"
USAGE = event({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}})
WHOLE = b": hello\r\n\r\n" + chunk("a") + chunk("é") + chunk("", None) + chunk("", "length") + USAGE + DONE


def fed(*parts: bytes) -> CompletionStream:
    stream = CompletionStream()
    for at, part in enumerate(parts):
        stream.feed(part, float(at))
    return stream


def error(code: object, kind: str = "server_error") -> bytes:
    return json.dumps({"error": {"message": "m", "type": kind, "code": code, "retryable": True}}).encode()


@given(st.lists(st.integers(0, len(WHOLE)), max_size=12).map(sorted))
def test_a_stream_means_the_same_however_it_is_cut(cuts: list[int]) -> None:
    edges = [0, *cuts, len(WHOLE)]
    stream = fed(*(WHOLE[start:end] for start, end in pairwise(edges)))

    assert stream.ending == Ending(EndKind.COMPLETED)
    assert (stream.tokens, stream.prompt_tokens, stream.output_tokens) == (3, 11, 3)
    assert len(stream.token_times) == 3


def test_crlf_lines_are_read_like_lf_lines() -> None:
    assert fed(WHOLE.replace(b"\n", b"\r\n")).ending == Ending(EndKind.COMPLETED)


@given(st.binary(max_size=300) | st.binary(max_size=80).map(lambda junk: b"data: " + junk + b"\n"))
def test_nothing_a_peer_sends_can_raise(junk: bytes) -> None:
    stream = fed(junk, b"\n", chunk("a"))

    assert isinstance(stream.close(), Ending)


@pytest.mark.parametrize("payload", [[], 3, "x", None, {"choices": 5}, {"choices": [7]}, {"usage": 1, "choices": []}])
def test_json_of_another_shape_is_a_bad_stream(payload: object) -> None:
    assert fed(event(payload)).ending == failed("bad_stream")


def test_an_endless_line_is_given_up() -> None:
    assert fed(*[b"x" * 300_000] * 4).ending == failed("event_too_long")


@pytest.mark.parametrize(
    ("parts", "ending"),
    [
        ([chunk("a")], failed("stream_cut")),
        ([], failed("stream_cut")),
        ([chunk("a", "stop")], Ending(EndKind.COMPLETED)),
        ([chunk("a"), DONE], Ending(EndKind.COMPLETED)),
        ([chunk("a", "content_filter"), DONE], Ending(EndKind.COMPLETED)),
        ([chunk("a"), chunk("", "pool_exhausted"), DONE], failed("pool_exhausted")),
        ([chunk("", "run_timeout"), DONE], failed("run_timeout")),
        ([b"data: " + error("queue_timeout") + b"\n\n"], Ending(EndKind.REJECTED, "queue_timeout")),
        ([chunk("a"), b"data: " + error("engine_error") + b"\n\n", DONE], failed("engine_error")),
    ],
)
def test_the_end_of_a_stream_is_told_from_what_came(parts: list[bytes], ending: Ending) -> None:
    assert fed(*parts).close() == ending


def test_several_token_ids_in_one_chunk_are_several_tokens() -> None:
    stream = fed(event({"choices": [{"text": "ab", "token_ids": [1, 2, 3], "finish_reason": None}]}), chunk("c"))

    assert stream.tokens == 4
    assert gaps_seconds(stream.token_times) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("status", "body", "ending"),
    [
        (429, error("queue_full"), Ending(EndKind.REJECTED, "queue_full", 429)),
        (400, error("context_too_long"), Ending(EndKind.REJECTED, "context_too_long", 400)),
        (503, error("draining"), Ending(EndKind.REJECTED, "draining", 503)),
        (503, error("engine_error"), Ending(EndKind.FAILED, "engine_error", 503)),
        (500, error("oops"), Ending(EndKind.FAILED, "oops", 500)),
        (400, error(400, "BadRequestError"), Ending(EndKind.REJECTED, "bad_request_error", 400)),
        (422, b"<html>", Ending(EndKind.REJECTED, "http_422", 422)),
        (502, b"", Ending(EndKind.FAILED, "http_502", 502)),
        (404, b"[1]", Ending(EndKind.REJECTED, "http_404", 404)),
        (429, b'{"error": "slow down"}', Ending(EndKind.REJECTED, "http_429", 429)),
        (429, error("A" * 500), Ending(EndKind.REJECTED, "a" * 40, 429)),
    ],
)
def test_a_refusal_is_told_from_a_failure_by_status_and_code(status: int, body: bytes, ending: Ending) -> None:
    assert ending_of_status(status, body) == ending


@given(st.integers(100, 599), st.binary(max_size=100))
def test_no_error_body_can_raise(status: int, body: bytes) -> None:
    assert ending_of_status(status, body).kind in (EndKind.REJECTED, EndKind.FAILED)
