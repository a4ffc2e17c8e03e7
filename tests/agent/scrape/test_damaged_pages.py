"""20,000 damaged pages: none stops the agent, and none turns what is unknown, or was damaged away, into a number."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from kvledger_agent.observation import HistogramView
from kvledger_agent.scrape.detect import WANTED, detect
from kvledger_agent.scrape.engines import PROFILES
from kvledger_agent.scrape.errors import UnknownEngine
from kvledger_agent.scrape.page import Page, parse_page
from kvledger_agent.scrape.reading import EngineReading, read
from kvledger_agent.scrape.symptoms import SymptomTracker
from tests.agent.scrape.mutations import damaged
from tests.agent.scrape.scenes import PAGES

PAGES_IN_ALL = 20_000
SOURCES = sorted(PAGES.glob("*.prom"))
SHARES = 20
SUMS = ("prefix_hit_tokens_total",)
"""Over sources of which nobody knows how many there are: one that is gone is missing in the sum."""
BOUND = re.compile(r'le="(0\.5|1\.0|10\.0|\+Inf)"')
SIGNALS = [
    field.name
    for field in fields(EngineReading)
    if field.name
    not in ("version_range", "missing_families", "reported", "damaged_lines", "transfers_possible", "unsure")
]


def small(text: str) -> str:
    """Only lines that a profile wants, and four bounds of a histogram: the rest would be read as these are."""
    names = tuple({name.name for profile in PROFILES for spec in profile.families for name in spec.names})
    kept = [line for line in text.splitlines() if line.startswith(names)]
    return "\n".join([*(line for line in kept if "_bucket{" not in line or BOUND.search(line)), ""])


def readings_of(page: Page) -> dict[int, EngineReading]:
    try:
        known = detect(page)
    except UnknownEngine:
        return {}
    readings = read(known.profile, known.version_range, page, monotonic_ns=1, wall_ns=1)
    for reading in readings:
        SymptomTracker(known.profile).update(reading)
    return {reading.rank: reading for reading in readings}


def identities(readings: Mapping[int, EngineReading]) -> set[tuple[str, int]]:
    return {(reading.engine, rank) for rank, reading in readings.items()}


def agrees(value: Any, whole: Any, *, near: bool) -> bool:
    """Whether a value is the whole page's, or part of it. A word that lost a letter is a word nobody knows."""
    if isinstance(value, HistogramView):
        return is_coarser(value, whole)
    if isinstance(value, Mapping):
        return all(whole[word] == count for word, count in value.items() if word in whole)
    # A usage that is gone follows from the blocks, unrounded.
    return bool(value == (pytest.approx(whole, abs=0.006) if near else whole))


def is_coarser(view: HistogramView, whole: HistogramView) -> bool:
    """Whether a histogram is another with bounds left out: then no count is wrong."""
    known = dict(zip(whole.bounds, np.cumsum(whole.buckets)[:-1].tolist(), strict=True))
    counts = np.cumsum(view.buckets)[:-1].tolist()
    same = all(known.get(bound) == count for bound, count in zip(view.bounds, counts, strict=True))
    return same and view.buckets.sum() == whole.buckets.sum()


@pytest.mark.parametrize("share", range(SHARES))
def test_no_damaged_page_says_what_the_whole_one_did_not(share: int) -> None:
    random_ = random.Random(20_000 + share)
    texts = {path.name: small(path.read_text()) for path in SOURCES[share::SHARES] or SOURCES[:1]}
    whole = {name: readings_of(parse_page(text, WANTED)) for name, text in texts.items()}
    names = sorted(texts)
    compared = 0
    for number in range(PAGES_IN_ALL // SHARES):
        name = names[number % len(names)]
        text = damaged(texts[name], random_)
        found = readings_of(parse_page(text.encode(), WANTED))
        if identities(found) != identities(whole[name]):
            continue  # a rank that is wholly gone or gone astray, or only what passed the engine's families on
        compared += 1
        for rank, reading in found.items():
            check(reading, whole[name].get(rank), text)
    assert compared > PAGES_IN_ALL // SHARES // 2, "most of the damage left nothing to compare"


def check(reading: EngineReading, whole: EngineReading | None, text: str) -> None:
    for signal in SIGNALS:
        value = getattr(reading, signal)
        if value is None or signal in ("rank", "engine", "model", "monotonic_ns", "wall_ns"):
            continue
        assert whole is not None, text
        known = getattr(whole, signal)
        assert known is not None, f"{signal} was unknown and is {value} now\n{text}"
        parts = signal in SUMS and value <= known
        assert parts or agrees(value, known, near=signal == "usage_ratio"), (
            f"{signal} was {known} and is {value} now\n{text}"
        )
