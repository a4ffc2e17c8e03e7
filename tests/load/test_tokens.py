"""Prompts are deterministic, of the stated length, and shared exactly where the plan says so."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger_agent.errors import UsageError
from kvledger_agent.load.arrivals import Arrival, PrefixRun
from kvledger_agent.load.plan import LoadPlan
from kvledger_agent.load.tokens import PromptAs, PromptWriter, run_ids
from kvledger_agent.load.traces import MOONCAKE_BLOCK_TOKENS, Trace, TraceRow
from tests.load.prompts import prompt_ids

hash_ids = st.lists(st.integers(0, 12), min_size=1, max_size=6).map(tuple)


def an_arrival(*, serial: int = 0, prompt_tokens: int = 100, prefix: tuple[PrefixRun, ...] | None = None) -> Arrival:
    return Arrival(
        serial=serial, at_seconds=0.0, prompt_tokens=prompt_tokens, output_tokens=4, tenant="tenant-0", prefix=prefix
    )


def common_prefix(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(one), len(other)))


@settings(max_examples=50, deadline=None)
@given(one=hash_ids, other=hash_ids, seed=st.integers(0, 1000), scale=st.sampled_from([1.0, 0.25, 0.1]))
def test_equal_hash_ids_of_a_mooncake_trace_give_equal_token_runs(
    one: tuple[int, ...], other: tuple[int, ...], seed: int, scale: float
) -> None:
    rows = tuple(TraceRow(0.0, len(ids) * MOONCAKE_BLOCK_TOKENS - 7, 4, ids) for ids in (one, other))
    plan = LoadPlan(trace=Trace("m", "mooncake", rows), seed=seed, length_scale=scale)
    first, second = (prompt_ids(arrival, seed=seed) for arrival in plan.arrivals())
    shared_ids = common_prefix(list(one), list(other))

    expected = min(shared_ids * round(MOONCAKE_BLOCK_TOKENS * scale), len(first), len(second))
    assert common_prefix(first, second) >= expected
    # The runs that differ differ at once: two random bytes streams agree on 8 tokens once in 2**64.
    assert common_prefix(first, second) <= expected + 8


@settings(max_examples=50, deadline=None)
@given(tokens=st.integers(0, 3000), prefix_tokens=st.integers(1, 2000), below=st.sampled_from([16, 256, 32_000]))
def test_a_prompt_has_exactly_the_planned_length_and_small_ids(tokens: int, prefix_tokens: int, below: int) -> None:
    arrival = an_arrival(prompt_tokens=tokens, prefix=(PrefixRun("tenant-0", 1, prefix_tokens),))
    ids = prompt_ids(arrival, seed=3, below=below)

    assert len(ids) == tokens
    assert all(0 < token < below for token in ids)


@given(long=st.integers(1, 2000), short=st.integers(0, 2000))
def test_a_shorter_run_is_the_beginning_of_a_longer_one(long: int, short: int) -> None:
    short = min(long, short)

    assert run_ids(seed=1, key="k", tokens=long)[:short] == run_ids(seed=1, key="k", tokens=short)


def test_requests_without_a_common_run_share_nothing() -> None:
    one, other = (prompt_ids(an_arrival(serial=serial), seed=1) for serial in (1, 2))
    prefixed = [prompt_ids(an_arrival(prefix=(PrefixRun(scope, 0, 64),)), seed=1) for scope in ("tenant-0", "tenant-1")]

    assert common_prefix(one, other) < 8
    assert common_prefix(*prefixed) < 8, "another tenant's prefix is another prefix"


def test_requests_with_a_common_prefix_part_where_it_ends() -> None:
    prefix = (PrefixRun("tenant-0", 0, 64),)
    one, other = (prompt_ids(an_arrival(serial=serial, prefix=prefix), seed=1) for serial in (1, 2))

    assert 64 <= common_prefix(one, other) < 72


@settings(max_examples=30, deadline=None)
@given(tokens=st.integers(1, 1200), prefix_tokens=st.integers(1, 1200))
def test_the_writer_writes_what_prompt_ids_says(tokens: int, prefix_tokens: int) -> None:
    prefix = (PrefixRun("tenant-0", 0, prefix_tokens), PrefixRun("trace", 4, 100))
    arrival = an_arrival(prompt_tokens=tokens, prefix=prefix)

    assert json.loads(PromptWriter(seed=5).json(arrival)) == prompt_ids(arrival, seed=5)


def test_a_text_prompt_has_one_word_per_token_and_shares_the_same_prefixes() -> None:
    prefix = (PrefixRun("tenant-0", 0, 60),)
    writer = PromptWriter(seed=5, prompt_as=PromptAs.TEXT)
    one, other = (
        json.loads(writer.json(an_arrival(serial=serial, prompt_tokens=90, prefix=prefix))).split() for serial in (1, 2)
    )

    assert len(one) == len(other) == 90
    assert one[:60] == other[:60]
    assert one[60:] != other[60:]


def test_a_vocabulary_too_small_to_differ_in_is_refused() -> None:
    with pytest.raises(UsageError, match="token_ids_below=2"):
        PromptWriter(seed=1, below=2)
