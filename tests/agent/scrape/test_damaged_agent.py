"""2,000 damaged pages all the way: over HTTP into a running agent, and out on its own metrics page.

None of them ends the agent or its sampling, and no value is on its page that the whole page's has not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvledger_agent.agent import Agent
from kvledger_agent.config import AgentConfig
from kvledger_agent.fleet import INTERNAL_ERROR
from kvledger_agent.scrape.detect import WANTED
from kvledger_agent.scrape.page import parse_page
from tests.agent.scrape.mutations import damaged
from tests.agent.scrape.serving import Served, serving
from tests.agent.scrape.test_damaged_pages import SOURCES, identities, readings_of, small

PAGES_IN_ALL, SHARES = 2_000, 8
Value = tuple[str, tuple[tuple[str, str], ...]]
LABEL = re.compile(r'(\w+)="([^"]*)"')
ITS_OWN = (
    "kvledger_agent", "kvledger_source", "kvledger_build", "kvledger_capability", "kvledger_verdict", "kvledger_action",
)  # fmt: skip
"""Families about the agent, about what a page lacks, and words that follow from everything else."""
DERIVED = ("kvledger_scorecard",)
"""Estimates from histograms, which are coarser where a bound is gone."""
MOVES = ("bootstrap_queue", "inflight_queue", "transfer_queue", "prealloc_queue")
"""What families of KV that moves are called."""
NEAR = ("kvledger_pool_usage_ratio",)
"""A usage that is gone follows from the blocks, unrounded."""
SUMS = ("kvledger_prefix_hit_tokens_total",)
"""Over sources of which nobody knows how many there are: one that is gone is missing in the sum."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Served]:
    with serving() as served:
        yield served


def values_of(agent: Agent) -> dict[Value, float]:
    """Everything on the agent's page that it says of engines, by name and labels."""
    values = {}
    for line in agent.metrics_text().splitlines():
        if line.startswith(("#", *ITS_OWN)):
            continue
        series, _, number = line.rpartition(" ")
        labels = [(k, v) for k, v in LABEL.findall(series) if k not in ("model", "pool")]
        values[series.partition("{")[0], tuple(labels)] = float(number)
    return values


def whose(text: str) -> set[tuple[str, int]]:
    """Engine and ranks that a page is taken for."""
    return identities(readings_of(parse_page(text.encode(), WANTED)))


@pytest.mark.parametrize("share", range(SHARES))
def test_no_damaged_page_ends_the_agent_or_puts_a_number_on_its_page_that_nobody_said(
    share: int, engine: Served, tmp_path: Path
) -> None:
    random_ = random.Random(2_000 + share)
    texts = {path.name: small(path.read_text()) for path in SOURCES[share::SHARES]}
    config = AgentConfig(
        directory=tmp_path / "none", scrape=(f"chat={engine.url}/{share}",), scrape_timeout_seconds=5.0
    )
    all_said: dict[str, dict[Value, float]] = {}
    compared = lost = changed = 0
    with closing(Agent(config)) as agent:
        for number in range(PAGES_IN_ALL // SHARES):
            name = sorted(texts)[number * len(texts) * SHARES // PAGES_IN_ALL]
            # First the whole page, as if the engine had just been started: what a page says then is all it can say.
            engine.put(f"/{share}", texts[name].encode())
            agent.sample_once()
            if name not in all_said:
                agent.sample_once()  # what is out of range is so twice
                all_said[name] = values_of(agent)
            whole = all_said[name]
            text = damaged(texts[name], random_)
            engine.put(f"/{share}", text.encode())
            fleet = agent.sample_once()
            assert all(source.status != INTERNAL_ERROR for source in fleet.sources), text
            # Ranks that the page has no more are shown as they were, and so said to be.
            there = {str(o.identity.rank) for o in fleet.observations if not o.liveness.last_served}
            found = {key: value for key, value in values_of(agent).items() if dict(key[1]).get("rank") in there}
            assert sum(source.success for source in fleet.sources) == len(there)
            if not there:
                lost += 1
            elif whose(text) != whose(texts[name]):
                changed += 1
                compare_zeros(found, whole, text)
            else:
                compared += 1
                compare(found, whole, text)
    assert compared > 150, (compared, lost, changed)


def compare(found: dict[Value, float], whole: dict[Value, float], text: str) -> None:
    """The same ranks: what is there was there, with the same value."""
    for key, value in found.items():
        name, labels = key
        if "le" in dict(labels):
            continue  # of a histogram that has lost bounds, counts at others: its sum and its count are compared
        assert key in whole, f"{key} is {value} and was unknown\n{text}"
        if name == "kvledger_engine_idle" and not any(word in text for word in MOVES):
            continue  # where KV moves, and every trace of that is gone, an engine looks like one that does nothing
        if name.startswith(DERIVED):
            assert value != 0 or whole[key] == 0, f"{key} was {whole[key]} and is 0\n{text}"
            continue
        same = value == pytest.approx(whole[key], abs=0.006) if name in NEAR else value == whole[key]
        assert same or (name in SUMS and value <= whole[key]), f"{key} was {whole[key]} and is {value}\n{text}"


def compare_zeros(found: dict[Value, float], whole: dict[Value, float], text: str) -> None:
    """Other ranks, or another engine, whose page this one had passed on: no 0 is there where none was on any."""
    zeros = {nobody(key) for key, value in whole.items() if value == 0}
    for key, value in found.items():
        if "le" not in dict(key[1]):
            assert value != 0 or nobody(key) in zeros, f"{key} is 0 and was on no rank\n{text}"


def nobody(key: Value) -> Value:
    """A value's name without whose it is."""
    return key[0], tuple(pair for pair in key[1] if pair[0] != "rank")
