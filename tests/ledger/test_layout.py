"""Where everything lies in a file, and that the file says so itself."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import BadGeometry
from kvledger.head import read_head
from kvledger.layout import ALIGN_BYTES, CONTROL_INDEX, CONTROL_SIZE, HEADER_BYTES, SUMMARY, plan_layout
from kvledger.limits import Group, Limits
from kvledger.source import MemorySource
from kvledger.views import (
    Arena,
    Blocks,
    Evict,
    Free,
    Index,
    Instrument,
    Pins,
    Prefixes,
    Rings,
    Slots,
    Tenants,
    section_names,
)
from kvledger.words import WaitCause
from kvledger.writer import Ledger
from tests.ledger.toy import toy_limits


@st.composite
def any_limits(draw: st.DrawFn) -> Limits:
    groups = draw(st.lists(st.integers(1, 64), min_size=1, max_size=3))
    return Limits(
        engine="e",
        capacity_blocks=draw(st.integers(1, 3000)),
        max_requests=draw(st.integers(1, 300)),
        groups=tuple(Group(name=f"g{i}", block_size_tokens=size) for i, size in enumerate(groups)),
        max_logical_blocks=draw(st.integers(0, 10_000)),
        chunk_blocks=draw(st.integers(1, 100)),
        max_pins=draw(st.integers(0, 500)),
        max_tenants=draw(st.integers(1, 70)),
        event_records=draw(st.integers(2, 300)),
    )


@given(any_limits())
def test_sections_are_aligned_in_order_and_apart_and_the_file_ends_behind_the_last(limits: Limits) -> None:
    layout = plan_layout(limits)
    sections = list(layout.sections.values())
    assert HEADER_BYTES + len(layout.description) <= sections[0].offset
    for before, after in pairwise(sections):
        assert before.offset % ALIGN_BYTES == 0
        assert before.offset + before.nbytes <= after.offset
    assert (
        sections[-1].offset + sections[-1].nbytes <= layout.file_bytes < sections[-1].offset + sections[-1].nbytes + 64
    )


@given(any_limits())
def test_a_file_describes_itself_completely(limits: Limits) -> None:
    ledger = Ledger.in_memory(limits)
    head = read_head(MemorySource(ledger.image))
    assert head.limits == limits
    assert head.control == CONTROL_INDEX
    assert head.file_bytes == ledger.layout.file_bytes
    assert {n: (s.offset, s.shape, s.unit, s.help) for n, s in head.sections.items()} == {
        n: (s.offset, s.shape, s.unit, s.help) for n, s in ledger.layout.sections.items()
    }
    assert all(head.sections[n].dtype == s.dtype for n, s in ledger.layout.sections.items())
    assert (head.stats.counters, head.stats.histograms) == (ledger.stats.plan.counters, ledger.stats.plan.histograms)
    assert head.stats.tenant_counters == ledger.stats.plan.tenant_counters


def test_every_section_has_a_view_and_every_view_a_section() -> None:
    seen = {
        name
        for view in (Blocks, Free, Index, Evict, Arena, Pins, Tenants, Slots, Rings, Instrument, Prefixes)
        for name in section_names(view)
    }
    assert seen | {"control", "stats"} == set(plan_layout(toy_limits()).sections)


def test_every_section_counter_and_histogram_says_what_it_is() -> None:
    description = json.loads(plan_layout(toy_limits()).description)
    for entry in description["sections"] + description["control"]:
        assert len(entry["help"]) > 3, entry
    for entry in description["stats"]["counters"] + description["stats"]["histograms"]:
        assert entry["help"].endswith("."), entry


def test_control_words_fit_and_are_stored_whole() -> None:
    control = plan_layout(toy_limits()).sections["control"]
    assert len(CONTROL_INDEX) <= CONTROL_SIZE == control.shape[0]
    assert control.dtype == np.int64
    assert control.offset % 8 == 0
    # The words that a look compares lie in one cache line.
    assert {CONTROL_INDEX[name] for name in ("published_seq", "writing_seq", "stats_index")} <= set(range(8))


def test_wait_vectors_have_one_place_per_cause() -> None:
    assert SUMMARY["wait_seconds"].shape == (len(WaitCause),)
    assert plan_layout(toy_limits()).sections["slot.wait_base"].shape[1] == len(WaitCause)


def test_a_million_blocks_take_less_than_two_hundred_bytes_each() -> None:
    layout = plan_layout(Limits(engine="e", capacity_blocks=1_000_000, max_requests=4096))
    assert layout.file_bytes < 200e6, f"{layout.file_bytes:,} bytes"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("capacity_blocks", 0, "capacity_blocks=0"),
        ("capacity_blocks", 1 << 27, "capacity_blocks=134217728"),
        ("max_requests", 0, "max_requests=0"),
        ("chunk_blocks", 0, "chunk_blocks=0"),
        ("max_tenants", 0, "max_tenants=0"),
        ("event_records", 1, "event_records=1"),
        ("engine", "", "engine=''"),
        ("engine", "../up", "engine='../up'"),
        ("engine", ".hidden", "engine='.hidden'"),
        ("pool", "a b", "pool='a b'"),
        ("rank", -1, "rank=-1"),
        ("groups", (), "groups=0"),
        ("groups", (Group(block_size_tokens=0),), "block_size_tokens=0"),
    ],
)
def test_limits_that_make_no_ledger_are_refused_with_the_value(name: str, value: object, said: str) -> None:
    given_limits: dict[str, Any] = {"engine": "e", "capacity_blocks": 10, "max_requests": 2, name: value}
    with pytest.raises(BadGeometry) as caught:
        Limits(**given_limits)
    assert str(caught.value).startswith(said)


@given(st.integers(1, 1 << 26))
def test_the_prefix_index_is_a_power_of_two_and_at_most_half_full(capacity: int) -> None:
    slots = Limits(engine="e", capacity_blocks=capacity, max_requests=1).index_slots
    assert slots & (slots - 1) == 0
    assert slots >= 2 * capacity
