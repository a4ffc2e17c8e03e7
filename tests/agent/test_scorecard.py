"""The scorecard: seven figures that agree with the metrics page, and unknown where nothing is known."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text
from rich.console import Console

from kvledger import geometry
from kvledger.words import CancelCause
from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.exporters.page import MetricsPage
from kvledger_agent.fleet import Fleet
from kvledger_agent.http import make_app
from kvledger_agent.observation import HistogramView, Identity, Liveness, Observation, Totals
from kvledger_agent.plain import plain
from kvledger_agent.quantile import quantile
from kvledger_agent.scorecard import Scorecard, ratio, scorecard
from kvledger_agent.scorecard_table import COLUMNS, scorecard_table
from kvledger_engine.messages import NewRequest
from tests.agent.rig import EngineWatch, source_over
from tests.children import ENVIRONMENT, ROOT, Spawn

CHILDREN = "tests.agent.children"
GOLDEN = Path(__file__).parents[1] / "golden" / "scorecard.txt"
UNSEEN = Observation(
    identity=Identity(engine="e", rank=0, model="m", pool="gpu"),
    liveness=Liveness(status="live", up=True, idle=None, heartbeat_age_seconds=None, heartbeat_monotonic_ns=None),
)


def request(name: str, prompt: int, tokens: int, tenant: str = "acme") -> NewRequest:
    return NewRequest(request_id=name, prompt=[i % 256 for i in range(prompt)], max_tokens=tokens, tenant=tenant)


def worked(lengths: list[tuple[int, int]], **config: object) -> EngineWatch:
    """An engine after serving requests of (prompt, output) tokens, some of them cancelled, two still running."""
    options: dict[str, object] = {"capacity_blocks": 64, "price_per_hour": 7.2, "reserve_bytes": 4096}
    watch = EngineWatch(**(options | config))
    for number, (prompt, tokens) in enumerate(lengths):
        watch.loop.submit(request(f"r{number}", prompt, tokens, tenant=f"t{number % 3}"))
        watch.loop.step()
        if number % 7 == 3:
            watch.loop.cancel([f"r{number}"], CancelCause.API)
    watch.finish()
    watch.loop.submit(request("too-long", 4000, 10))
    for name in ("open-1", "open-2"):
        watch.loop.submit(request(name, 9, 9))
    watch.loop.step()
    return watch


def printed(card: Scorecard) -> str:
    output = StringIO()
    Console(file=output, width=COLUMNS, color_system=None).print(scorecard_table(card))
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()).rstrip() + "\n"


def page_of(observation: Observation) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    fleet = Fleet(round=1, sampled_ns=time.monotonic_ns(), observations=(observation,), sources=())
    body, _ = MetricsPage().render(fleet, accept="", now_ns=time.monotonic_ns())
    return {
        (sample.name.removeprefix("kvledger_"), frozenset(sample.labels.items())): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }


LENGTHS = st.lists(st.tuples(st.integers(1, 24), st.integers(1, 12)), max_size=50)


@settings(max_examples=15)
@given(lengths=LENGTHS)
def test_every_figure_is_what_the_metrics_page_gives(lengths: list[tuple[int, int]]) -> None:
    observation = worked(lengths).look()
    card, page = scorecard(observation), page_of(observation)

    def found(name: str, **labels: str) -> list[float]:
        return [v for (n, known), v in page.items() if n == name and labels.items() <= dict(known).items()]

    def total(name: str, **labels: str) -> float:
        return math.fsum(found(name, **labels))

    refused, ended = total("rejections_total"), total("requests_total")
    assert (card.rejected, card.ended) == (refused, ended)
    assert card.rejection_ratio == ratio(refused, refused + ended)
    assert card.bytes_per_token == total("group_bytes_per_token")
    assert [*(card.block_size_tokens or {}).values()] == found("group_block_size_tokens")
    assert [card.peak_active_blocks] == found("pool_peak_active_blocks")
    assert [card.concurrency.reached] == found("requests_peak_running")
    assert [card.concurrency.reserve[0].bytes] == found("pool_reserve_bytes")
    for percentile in (50, 95, 99):
        fits = [fit for fit in card.concurrency.fits or () if fit.percentile == percentile]
        assert [fit.requests for fit in fits] == found("maximum_concurrency", percentile=str(percentile))
        assert [fit.length_tokens for fit in fits] == found("length_tokens", percentile=str(percentile))
    for name in ("rejection_ratio", "ttft_p95_seconds", "cost_per_request"):
        assert found(f"scorecard_{name}") == [value for value in [getattr(card, name)] if value is not None]
    assert card.cost_per_request == (pytest.approx(total("cost_total") / ended) if ended else None)
    if not total(f"{TTFT}_count"):
        assert (card.ttft_p95_seconds, card.ttft_p95_low_seconds, card.ttft_p95_high_seconds) == (None, None, None)
        return
    low, high = card.ttft_p95_low_seconds, card.ttft_p95_high_seconds
    assert low is not None
    assert high is not None
    assert card.ttft_p95_seconds == pytest.approx(min(max(p95_of_page(page), low), high))


TTFT = "time_to_first_token_seconds"


def p95_of_page(page: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> float:
    """histogram_quantile(0.95, sum by (le) (...)), from its documentation, over the cumulative buckets of a page."""
    below: dict[float, float] = {}
    for (name, labels), value in page.items():
        if name == f"{TTFT}_bucket":
            bound = float(dict(labels)["le"])
            below[bound] = below.get(bound, 0.0) + value
    rank, lower, before = 0.95 * below[math.inf], 0.0, 0.0
    for bound, count in sorted(below.items()):
        if count >= rank:
            return lower if bound == math.inf else lower + (bound - lower) * (rank - before) / (count - before)
        lower, before = bound, count
    raise AssertionError("a page without buckets")


def test_concurrency_is_the_pool_over_the_blocks_of_a_request_of_that_length() -> None:
    watch = worked([(12, 4)] * 47 + [(40, 8)] * 3, block_size_tokens=4, max_model_len_tokens=64)
    card = scorecard(watch.look())

    fits = card.concurrency.fits
    assert fits is not None
    assert [(fit.percentile, fit.length_tokens) for fit in fits] == [(50, 16), (95, 48), (99, 48)]
    assert [fit.requests for fit in fits] == pytest.approx([64 / 4, 64 / 12, 64 / 12])
    assert card.concurrency.budget_bytes == 64 * 4 * 8 + 4096
    for fit in fits:
        formula = geometry.effective_concurrency(
            budget_bytes=card.concurrency.budget_bytes,
            bytes_per_token=card.bytes_per_token or 0,
            context_tokens=fit.length_tokens or 0,
            reserve_bytes=4096,
        )
        assert fit.requests == pytest.approx(formula), "these lengths fill their blocks"


def test_the_reserve_is_itemised_as_far_as_the_engine_knows_it() -> None:
    watch = worked([(12, 4)] * 3, reserve_bytes=None, weights_bytes=5000)
    store = watch.config.token_store_bytes

    reserve = scorecard(watch.look()).concurrency.reserve

    assert {item.name: item.bytes for item in reserve if item.subtracted} == {
        "reserve": 5000 + store,
        "weights": 5000,
        "activations": None,
        "communication_buffers": 0,
        "allocator_metadata": store,
    }
    assert [item.part_of for item in reserve[:5]] == [None, *["reserve"] * 4]


def test_reached_counts_requests_that_ran_between_two_looks() -> None:
    watch = EngineWatch(capacity_blocks=64, max_num_seqs=4)
    assert scorecard(watch.look()).concurrency.reached == 0
    for number in range(6):
        watch.loop.submit(request(f"r{number}", 4, 3))
    watch.finish()

    assert scorecard(watch.look()).concurrency.reached == 4
    watch.clock.advance(61_000_000_000)
    watch.loop.submit(request("much later", 4, 3))
    watch.loop.step()
    assert scorecard(watch.look()).concurrency.reached == 1


def test_reached_of_a_ledger_seen_for_the_first_time_comes_from_its_events() -> None:
    watch = worked([(8, 8)] * 30)

    late = source_over(watch.ledger, live=False).look()

    reached = scorecard(late).concurrency.reached
    assert reached == scorecard(watch.look()).concurrency.reached
    assert reached is not None
    assert 2 < reached <= watch.config.max_num_seqs


def test_what_is_not_known_is_none_and_never_zero() -> None:
    card = scorecard(UNSEEN)

    known = {name: value for name, value in plain(card).items() if value is not None}
    assert known == {
        "id": "e:0",
        "model": "m",
        "concurrency": {"fits": None, "reached": None, "budget_bytes": None, "reserve": []},
    }
    assert printed(card).count("unknown") == 12
    assert " 0" not in printed(card).replace("last 60 s", "")


def test_an_engine_that_has_served_nobody_has_no_rate_no_quantile_and_no_cost() -> None:
    card = scorecard(EngineWatch(price_per_hour=1.0).look())

    assert (card.rejected, card.ended) == (0, 0)
    assert (card.rejection_ratio, card.ttft_p95_seconds, card.cost_per_request) == (None, None, None)
    assert card.concurrency.fits is None


@pytest.mark.parametrize(
    ("buckets", "total", "said"),
    [
        ([1.0, 0.0, 9.0], 90.0, ("over 9.9 s", "9.9 s to 74.0 s, since counters began")),
        ([1.0, 0.0, 9.0], math.nan, ("over 2.0 s", "over 2.0 s, since counters began")),
        ([0.0, 4.0, 0.0], 6.0, ("2.0 s", "1.5 s to 2.0 s, since counters began")),
    ],
)
def test_a_first_token_somewhere_in_a_wide_bucket_is_told_as_over_its_lower_end(
    buckets: list[float], total: float, said: tuple[str, str]
) -> None:
    view = HistogramView(bounds=(1.0, 2.0), buckets=np.array(buckets), sum=total)
    seen = replace(UNSEEN, totals=Totals(histograms={"time_to_first_token": {("default",): view}}))

    assert all(text in printed(scorecard(seen)) for text in said), printed(scorecard(seen))


@given(st.lists(st.floats(0, 20), min_size=1, max_size=30), st.floats(0.01, 0.99))
def test_a_quantile_lies_between_the_ends_that_are_said_of_it(lengths: list[float], share: float) -> None:
    bounds = (1.0, 2.0, 5.0)
    counts = np.bincount(np.searchsorted(bounds, lengths), minlength=len(bounds) + 1)
    found = quantile(share, HistogramView(bounds=bounds, buckets=counts.astype(float), sum=math.fsum(lengths)))
    true = sorted(lengths)[math.ceil(share * len(lengths)) - 1]

    assert found is not None
    assert found.high is not None
    assert found.low - 1e-9 <= true <= found.high + 1e-9
    assert found.low <= found.value <= found.high
    if len(lengths) == 1:
        assert found.value == pytest.approx(true), "the sum gives it away"


def test_a_sum_of_another_moment_than_its_buckets_narrows_nothing() -> None:
    found = quantile(0.5, HistogramView(bounds=(1.0, 2.0), buckets=np.array([0.0, 3.0, 0.0]), sum=0.5))

    assert found is not None
    assert (found.low, found.high) == (1.0, 2.0)


def test_the_table_is_the_golden_one_and_fits_80_columns(update_golden: bool) -> None:
    lengths = [(4 + 5 * number % 21, 3 + 7 * number % 17) for number in range(80)]
    options = {"admission_watermark_blocks": 2, "reserve_bytes": None, "weights_bytes": 65_536}
    text = printed(scorecard(worked(lengths, engine="golden", **options).look()))
    if update_golden:
        GOLDEN.write_text(text)

    assert text == GOLDEN.read_text(), "run pytest tests/agent --update-golden if the change is meant"
    assert max(map(len, text.splitlines())) <= COLUMNS


@pytest.mark.needs("tmpfs")
def test_command_and_api_give_the_same_card(memory: Path, spawn: Spawn) -> None:
    spawn(CHILDREN, "scene", memory)
    (memory / "bad.0.00000001.kvledger").write_bytes(bytes(9000))

    async def answer() -> tuple[int, object]:
        agent = Agent(AgentConfig(directory=memory))
        agent.sample_once()
        async with (
            TestClient(TestServer(make_app(agent))) as client,
            client.get("/v1/engines/golden/scorecard") as answer,
        ):
            document = await answer.json()
        agent.close()
        return answer.status, document

    program = "import sys; from kvledger_agent.commands.scorecard import COMMAND as c; import argparse as a\n"
    program += "p = a.ArgumentParser(); c.configure(p); sys.exit(c.run(p.parse_args()))"
    done = subprocess.run(
        [sys.executable, "-c", program, "--json", "--directory", str(memory)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    status, document = asyncio.run(answer())

    assert (done.returncode, status) == (1, 200)
    assert "bad:0  not_a_ledger" in done.stderr
    found = json.loads(done.stdout)
    assert found["engines"] == [document]
    assert [lost["id"] for lost in found["unreadable"]] == ["bad:0"]
    assert isinstance(document, dict)
    assert (document["peak_active_blocks"], document["rejected"], document["concurrency"]["reached"]) == (24, 47, 6)
