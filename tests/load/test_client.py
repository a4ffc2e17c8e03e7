"""One request against a real endpoint: its times, its fate and the way it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from aiohttp import web

from kvledger_agent.errors import EndpointError, UsageError
from kvledger_agent.load.arrivals import FINISH, Arrival, Fate, FateKind
from kvledger_agent.load.client import API_KEY_VARIABLE, CompletionClient, api_root, first_model, open_session
from kvledger_agent.load.outcome import Ending, EndKind, Outcome, failed
from kvledger_agent.load.plan import RequestOptions
from kvledger_agent.load.tokens import PromptAs, PromptWriter
from tests.load.endpoint import (
    Behaviour,
    Endpoint,
    Seen,
    chunk,
    event,
    hang,
    hang_after_headers,
    refuse,
    send_raw,
    serving,
    stream_all,
    stream_slowly,
)
from tests.load.prompts import prompt_ids

SEED = 4
DONE = b"data: [DONE]\n\n"


def an_arrival(*, output_tokens: int = 5, fate: Fate = FINISH) -> Arrival:
    return Arrival(
        serial=1,
        at_seconds=0.0,
        prompt_tokens=20,
        output_tokens=output_tokens,
        tenant="tenant-3",
        request_class="batch",
        fate=fate,
    )


async def one(
    url: str, arrival: Arrival, *, options: RequestOptions | None = None, late_seconds: float = 0.0
) -> Outcome:
    """Send one request, intended `late_seconds` ago."""
    options = options or RequestOptions()
    writer = PromptWriter(seed=SEED, prompt_as=options.prompt_as)
    async with open_session(options) as session:
        client = CompletionClient(session, base_url=url, model="cell", options=options, writer=writer)
        return await client.send(arrival, intended_seconds=asyncio.get_running_loop().time() - late_seconds)


def against(
    behaviour: Behaviour,
    arrival: Arrival,
    *,
    options: RequestOptions | None = None,
    late_seconds: float = 0.0,
    then: Callable[[Endpoint], Coroutine[None, None, None]] | None = None,
) -> tuple[Outcome, Endpoint]:
    """The outcome of one request against an endpoint that behaves so, and what the endpoint saw."""

    async def run() -> tuple[Outcome, Endpoint]:
        async with serving(behaviour) as endpoint:
            outcome = await one(endpoint.url, arrival, options=options, late_seconds=late_seconds)
            if then:
                await then(endpoint)
            return outcome, endpoint

    return asyncio.run(run())


async def the_disconnect_is_seen(endpoint: Endpoint) -> None:
    await endpoint.until(lambda seen: seen.disconnects == 1)


def test_a_completed_request_has_its_tokens_and_times() -> None:
    outcome, _ = against(stream_slowly(first_seconds=0.05, token_seconds=0.02), an_arrival(output_tokens=4))

    assert outcome.ending == Ending(EndKind.COMPLETED)
    assert outcome.output_tokens == 4
    assert outcome.prompt_tokens == 20
    assert outcome.first_token_seconds is not None
    assert outcome.first_token_seconds >= 0.05
    assert len(outcome.token_gaps_seconds) == 3
    assert outcome.total_seconds >= 0.05 + 4 * 0.02


def test_the_request_names_tenant_class_prompt_and_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, "a-secret")
    arrival = an_arrival()
    _, endpoint = against(stream_all, arrival)

    (seen,) = endpoint.seen
    assert seen.headers["X-Tenant"] == "tenant-3"
    assert seen.headers["X-Class"] == "batch"
    assert seen.headers["Authorization"] == "Bearer a-secret"
    assert seen.body == {
        "model": "cell",
        "stream": True,
        "temperature": 0.0,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "prompt": prompt_ids(arrival, seed=SEED),
    }


def test_without_a_key_no_authorization_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)
    _, endpoint = against(stream_all, an_arrival())

    assert "Authorization" not in endpoint.seen[0].headers


def test_options_for_other_endpoints_change_the_body() -> None:
    options = RequestOptions(prompt_as=PromptAs.TEXT, ignore_eos=True, ask_usage=False)
    _, endpoint = against(stream_slowly(first_seconds=0, token_seconds=0), an_arrival(), options=options)

    body = endpoint.seen[0].body
    assert len(body["prompt"].split()) == 20
    assert body["ignore_eos"] is True
    assert "stream_options" not in body


def test_latency_counts_from_the_intended_send_time() -> None:
    outcome, _ = against(stream_all, an_arrival(), late_seconds=3.0)

    assert outcome.late_seconds >= 3.0
    assert outcome.first_token_seconds is not None
    assert outcome.first_token_seconds >= 3.0
    assert outcome.total_seconds >= outcome.first_token_seconds
    assert sum(outcome.token_gaps_seconds) < 3.0, "gaps between tokens know nothing of the send time"


def test_a_disconnect_drops_the_stream_at_its_token_and_the_endpoint_sees_it() -> None:
    fate = Fate(kind=FateKind.DISCONNECT, after_tokens=3)
    outcome, _ = against(
        stream_slowly(first_seconds=0, token_seconds=0.02),
        an_arrival(output_tokens=500, fate=fate),
        then=the_disconnect_is_seen,
    )

    assert outcome.ending == Ending(EndKind.CANCELLED)
    assert 3 <= outcome.output_tokens < 500


@pytest.mark.parametrize("behaviour", [hang, hang_after_headers])
@pytest.mark.parametrize("kind", [FateKind.DISCONNECT, FateKind.RECONNECT])
def test_a_drop_before_the_first_token_reaches_a_silent_endpoint(behaviour: Behaviour, kind: FateKind) -> None:
    fate = Fate(kind=kind, after_seconds=0.05)
    outcome, _ = against(behaviour, an_arrival(fate=fate), then=the_disconnect_is_seen)

    assert outcome.ending == Ending(EndKind.CANCELLED)
    assert outcome.first_token_seconds is None
    assert outcome.output_tokens == 0


def test_a_drop_before_the_first_token_drops_on_the_first_one_if_that_is_sooner() -> None:
    fate = Fate(kind=FateKind.DISCONNECT, after_seconds=30.0)
    behaviour = stream_slowly(first_seconds=0, token_seconds=0.02)
    outcome, _ = against(behaviour, an_arrival(output_tokens=500, fate=fate), then=the_disconnect_is_seen)

    assert outcome.ending == Ending(EndKind.CANCELLED)


def test_an_impatient_client_times_out_and_the_endpoint_sees_it() -> None:
    fate = Fate(kind=FateKind.TIMEOUT, after_seconds=0.1)
    behaviour = stream_slowly(first_seconds=0, token_seconds=0.02)
    outcome, _ = against(behaviour, an_arrival(output_tokens=500, fate=fate), then=the_disconnect_is_seen)

    assert outcome.ending == Ending(EndKind.TIMED_OUT)
    assert outcome.output_tokens > 0


def test_a_request_without_an_end_is_given_up_by_the_common_patience() -> None:
    fate = Fate(kind=FateKind.DISCONNECT, after_tokens=3)
    outcome, _ = against(hang, an_arrival(fate=fate), options=RequestOptions(patience_seconds=0.05))

    assert outcome.ending == Ending(EndKind.TIMED_OUT)


def test_a_request_that_ends_before_its_fate_ends_as_the_endpoint_ended_it() -> None:
    for fate in (Fate(kind=FateKind.TIMEOUT, after_seconds=30.0), Fate(kind=FateKind.DISCONNECT, after_tokens=9)):
        outcome, _ = against(stream_all, an_arrival(fate=fate))
        assert outcome.ending == Ending(EndKind.COMPLETED)


def test_a_refusal_carries_reason_and_status() -> None:
    outcome, _ = against(refuse(429, "queue_full"), an_arrival())

    assert outcome.ending == Ending(EndKind.REJECTED, "queue_full", 429)
    assert outcome.first_token_seconds is None


@pytest.mark.parametrize(
    ("behaviour", "ending"),
    [
        (send_raw(chunk("a"), b"data: {nonsense\n\n"), failed("bad_stream")),
        (send_raw(b"{}", content_type="application/json"), failed("not_a_stream")),
        (send_raw(chunk("a")), failed("stream_cut")),
        (send_raw(chunk("a"), cut=True), failed("disconnected")),
        (send_raw(event({"error": {"code": "engine_error"}})), failed("engine_error")),
        (refuse(500, None), Ending(EndKind.FAILED, "invalid_request_error", 500)),
    ],
)
def test_a_fault_of_the_peer_is_an_outcome_and_never_raised(behaviour: Behaviour, ending: Ending) -> None:
    outcome, _ = against(behaviour, an_arrival())

    assert outcome.ending == ending


def test_an_endpoint_that_is_not_there_is_a_failure_to_connect() -> None:
    outcome = asyncio.run(one("http://127.0.0.1:9", an_arrival()))

    assert outcome.ending == failed("connect")


def test_a_stream_left_open_after_its_end_does_not_count_into_the_latency() -> None:
    async def never_closed(endpoint: Endpoint, request: web.Request, seen: Seen) -> web.StreamResponse:
        await send_raw(chunk("a", "stop"), DONE)(endpoint, request, seen)
        return await hang(endpoint, request, seen)

    outcome, _ = against(never_closed, an_arrival())

    assert outcome.ending == Ending(EndKind.COMPLETED)
    assert outcome.total_seconds < 0.9


def test_the_first_model_is_asked_of_the_endpoint() -> None:
    async def run() -> str:
        async with serving(stream_all) as endpoint, open_session(RequestOptions()) as session:
            return await first_model(session, f"{endpoint.url}/v1/", within_seconds=5)

    assert asyncio.run(run()) == "cell"


def test_an_endpoint_without_models_or_without_an_answer_is_an_error_with_a_remedy() -> None:
    async def run(url: str) -> None:
        async with open_session(RequestOptions()) as session:
            await first_model(session, url, within_seconds=5)

    async def run_lost() -> None:
        async with serving(stream_all) as endpoint:
            await run(f"{endpoint.url}/elsewhere")

    with pytest.raises(EndpointError, match="give the model's name"):
        asyncio.run(run_lost())
    with pytest.raises(EndpointError, match="start the endpoint"):
        asyncio.run(run("http://127.0.0.1:9"))


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_may_end_with_v1(url: str) -> None:
    assert api_root(url) == "http://h:1"


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:8000"):
        api_root("localhost:8000")
