"""A real vLLM server with the plugin: what its clients do is in the ledger, and a clean stop closes it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kvledger.invariants import counts, suspects
from kvledger.reader import Reader
from kvledger.snapshot import Sample
from kvledger.words import RequestState
from tests.vllm.server import MODEL, VllmServer, stop, vllm_server

PROMPT = [3 + number % 500 for number in range(200)]


@pytest.fixture(scope="module")
def server(tiny_model: Path, ledger_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    log = tmp_path_factory.mktemp("server") / "vllm.log"
    limits = ("--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "512")
    with vllm_server(tiny_model, ledger_directory, log, arguments=limits) as running:
        yield running


def until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


def sample_of(server: VllmServer) -> Sample:
    with Reader.open(server.ledger()) as reader:
        return reader.sample()


def complete(server: VllmServer, tokens: int, *, n: int = 1) -> None:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        answer = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=tokens, n=n, extra_body={"ignore_eos": True}
        )
        assert len(answer.choices) == n


def test_requests_of_the_openai_client_are_counted_and_leave_nothing_behind(server: VllmServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(complete, server, 20, n=2) for _ in range(4)]:
            done.result()
    until(lambda: sample_of(server).control["idle_since_ns"] != 0, "the engine is idle")
    with Reader.open(server.ledger()) as reader:
        sample, audit = reader.sample(), reader.audit()
        wrong = suspects(audit), counts(sample, audit)
    stats = sample.stats
    assert stats.counter("generation_tokens_total") == 4 * 2 * 20
    assert stats.counter("prompt_tokens_total") == 4 * 2 * len(PROMPT)
    assert sum((stats.tenant_counter("requests_total", finish_reason="length") or {}).values()) == 8
    assert (stats.counter("prefix_hit_tokens_total") or 0) > 0
    assert stats.whole("active_blocks") == 0 < stats.whole("cached_blocks")
    assert (len(sample.slots), *wrong) == (0, [], {})
    assert sample.control["mirror_corrections"] == sample.control["instrument_failed"] == 0


def test_a_client_that_goes_away_gives_every_block_back_though_no_further_step_runs(server: VllmServer) -> None:
    import openai

    cancelled = sample_of(server).stats.counter("cancellations_total", cause="disconnect") or 0
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        stream = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        # A client may have a token before the ledger tells of it.
        until(lambda: sample_of(server).slots.state.tolist() == [int(RequestState.RUNNING)], "the request runs")
        running = sample_of(server)
        assert running.stats.whole("active_blocks") == int(running.slots.table_blocks.sum()) > 0
        stream.close()

    def gone() -> bool:
        now = sample_of(server)
        return now.stats.counter("cancellations_total", cause="disconnect") == cancelled + 1 and not len(now.slots)

    until(gone, "the cancellation is in the ledger")
    assert sample_of(server).stats.whole("active_blocks") == 0


def test_a_server_that_is_stopped_closes_its_ledger(server: VllmServer) -> None:
    stop(server)
    # vLLM kills its engine core as soon as it has asked it to end: the last word may be on its way.
    until(lambda: sample_of(server).control["closed"] == 1, "the ledger is closed", 10)
