"""Fetching: bounded in time and size, and an error for each way in which it fails that says what to do."""

from __future__ import annotations

import time

import pytest

from kvledger_agent.errors import UsageError
from kvledger_agent.scrape.endpoint import parse_endpoint
from kvledger_agent.scrape.errors import (
    BadStatus,
    NotMetrics,
    ScrapeFailed,
    TimedOut,
    TooLarge,
    UnknownEngine,
    Unreachable,
)
from kvledger_agent.scrape.fetch import fetch, fetch_page
from kvledger_agent.scrape.scrape_source import Scraper
from tests.agent.scrape.serving import page, serving
from tests.ports import free_port


def test_nobody_listens() -> None:
    with pytest.raises(Unreachable, match=r"nobody answers at .*does the engine run"):
        fetch(f"http://127.0.0.1:{free_port()}", "/metrics")


def test_a_server_that_does_not_answer_is_given_up_in_time() -> None:
    with serving() as served:
        began = time.monotonic()
        with pytest.raises(TimedOut, match=r"did not answer within 0\.3 s"):
            fetch(served.url, "/hold", timeout_seconds=0.3)
        assert time.monotonic() - began < 3


def test_an_answer_that_is_too_large_is_not_read() -> None:
    with serving({"/metrics": b"a 1\n" * 1000}) as served, pytest.raises(TooLarge, match="more than 100 bytes"):
        fetch(served.url, "/metrics", max_bytes=100)


def test_a_redirect_is_not_followed_and_a_missing_page_says_where_else_to_look() -> None:
    with serving() as served:
        served.put("/moved", b"", status=302)
        with pytest.raises(BadStatus, match="redirects are not followed"):
            fetch(served.url, "/moved")
        with pytest.raises(BadStatus, match=r"/prometheus/metrics.*/v1/loads.*--metrics"):
            fetch(served.url, "/metrics")


@pytest.mark.parametrize("body", [b"<html><body>hello</body></html>", b"", b"  \n"])
def test_what_is_no_page_is_said_to_be_none(body: bytes) -> None:
    with serving({"/metrics": body}) as served, pytest.raises(NotMetrics):
        fetch_page(served.url, "/metrics")


def scraped(answers: dict[str, bytes]) -> tuple[str, str, str | None]:
    with serving(answers) as served:
        found = Scraper(parse_endpoint(served.url)).scrape()
        return found.path, found.detected.profile.engine, found.detected.version_range


def test_the_path_of_each_engine_is_found() -> None:
    loads = "/v1/loads?include=core,queues&format=json"

    assert scraped({"/metrics": page("vllm-0.32-busy.prom")}) == ("/metrics", "vllm", "0.32")
    iterations = b'[{"iter": 1, "numActiveRequests": 2}]'
    trtllm = {"/metrics": iterations, "/prometheus/metrics": page("tensorrt_llm-1.3-busy.prom")}
    assert scraped(trtllm) == ("/prometheus/metrics", "tensorrt_llm", ">=1.3")
    snapshot = {loads: page("sglang-0.5.22-loads_only.json")}
    assert scraped(snapshot) == (loads, "sglang", "any (/v1/loads)")


def test_a_page_of_no_known_engine_names_what_is_on_it() -> None:
    foreign = b"go_threads 7\nhttp_requests_total 3\n"
    with serving({"/metrics": foreign}) as served, pytest.raises(UnknownEngine, match=r"go_threads, http_req.*vLLM"):
        Scraper(parse_endpoint(served.url)).scrape()


def test_an_agents_own_page_is_said_to_be_one() -> None:
    with (
        serving({"/metrics": b"kvledger_engine_up 1\n"}) as served,
        pytest.raises(UnknownEngine, match="a kvledger agent's page"),
    ):
        Scraper(parse_endpoint(served.url)).scrape()


def test_a_document_that_fails_is_left_alone_for_a_while_and_costs_no_reading() -> None:
    with serving({"/metrics": page("llamacpp-server-busy.prom")}) as served:
        scraper = Scraper(parse_endpoint(served.url))
        readings = [scraper.scrape().readings[0] for _ in range(3)]

        assert [reading.capacity_blocks for reading in readings] == [None] * 3
        assert [reading.running for reading in readings] == [3] * 3
        assert served.asked.count("/slots") == 1


@pytest.mark.parametrize("text", ["", "localhost:8000", "ftp://x/", "http://", "http://x:0", "http://a b"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="use a URL"):
        parse_endpoint(text)


def test_credentials_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="credentials") as caught:
        parse_endpoint("http://me:secret@x:1")
    assert "secret" not in str(caught.value)


def test_a_name_is_the_given_one_or_made_of_the_address() -> None:
    assert parse_endpoint("chat=http://127.0.0.1:8000/metrics?model=a").name == "chat"
    assert parse_endpoint("chat=http://127.0.0.1:8000/metrics?model=a").paths == ("/metrics?model=a",)
    assert parse_endpoint("http://10.0.0.1:8000").name == "10.0.0.1-8000"
    assert parse_endpoint("http://[::1]:8000").name == "1-8000"


def test_every_failure_has_a_word_of_its_own() -> None:
    kinds = ScrapeFailed.__subclasses__()

    assert len({kind.word for kind in kinds}) == len(kinds) == 6
