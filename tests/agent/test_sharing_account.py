"""The sharing account: the ledger's sums, honest where sharing costs more than it saves, unknown where it is."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kvledger.layout import PREFIX_ACCOUNT, PREFIX_ACCOUNTS
from kvledger_agent.documents import snapshot_document
from kvledger_agent.plain import plain
from kvledger_agent.sharing_account import SharingView, sharing_view
from kvledger_agent.sharing_table import sharing_table
from tests.agent.rig import EngineWatch
from tests.engine.rig import request

PARTS = ("lookup_seconds", "reference_seconds", "index_seconds", "copy_seconds")
COUNTED = ("admissions", "hits", "queried_tokens", "hit_tokens")
SUMMED = (*COUNTED, *PARTS, "copied_blocks", "forks", "forked_tokens")
"""As the ledger's row has them after its key."""


def _watch(tick_ns: int = 1000) -> EngineWatch:
    """An engine whose stopwatch says that everything takes so long, after three requests for two prefixes."""
    watch = EngineWatch(capacity_blocks=64, bytes_per_token=8)
    ticks = count(step=tick_ns)
    watch.cache._metering.now_ns = lambda: next(ticks)
    for name, first in (("a", 1), ("b", 1), ("c", 9)):
        assert watch.submit(request(name, [first + at % 7 for at in range(33)], max_tokens=3)) == []
        watch.finish()
    return watch


def _account(watch: EngineWatch) -> SharingView:
    view = watch.look().sharing
    assert view is not None
    return view


def test_saved_time_is_hit_tokens_times_the_measured_time_of_a_prompt_token() -> None:
    view = _account(_watch())
    # Of 33 tokens 8 blocks of 4 are cached; prompts of 33, 1 and 33 tokens took a step of 1 ms each, of which the
    # second was a row of one token: a decode.
    assert view.seconds_per_prompt_token == pytest.approx(0.002 / 66)
    assert view.total.hit_tokens == 32
    assert view.total.saved_bytes == 32 * 8
    assert view.total.saved_seconds == pytest.approx(32 * 0.002 / 66)
    assert view.total.net_seconds == pytest.approx(32 * 0.002 / 66 - view.total.overhead_seconds)
    assert (view.total.net_seconds or 0) > 0
    assert [account.hit_tokens for account in view.prefixes] == [32, 0]


def test_sharing_that_takes_longer_than_it_saves_is_said_to_cost() -> None:
    view = _account(_watch(tick_ns=1_000_000))
    assert view.total.net_seconds is not None
    assert view.total.net_seconds < 0
    text = StringIO()
    Console(file=text, width=80, color_system=None).print(sharing_table("e:0", view))
    last = next(line for line in text.getvalue().splitlines() if line.startswith("all"))
    assert last.split()[-2].startswith("-")
    assert max(map(len, text.getvalue().splitlines())) <= 80


def test_before_a_prompt_was_timed_savings_and_net_are_unknown_and_costs_are_not() -> None:
    view = _account(EngineWatch())
    assert view.seconds_per_prompt_token is None
    assert (view.total.saved_seconds, view.total.net_seconds) == (None, None)
    assert view.total.overhead_seconds == 0
    assert view.prefixes == ()


def test_a_writer_that_cannot_tell_keeps_no_account() -> None:
    watch = EngineWatch()
    sample = watch.sample()
    limits = replace(watch.ledger.limits, unreported=("sharing_overhead_seconds_total",))
    assert sharing_view(watch.reader.prefix_accounts(), sample.stats, limits) is None


def test_the_snapshot_has_the_sum_and_no_number_that_json_lacks() -> None:
    document = snapshot_document(_watch().look())
    assert json.loads(json.dumps(document, allow_nan=False))["sharing"]["hit_tokens"] == 32


@given(
    rows=st.lists(
        st.tuples(*[st.integers(0, 1000)] * len(SUMMED)), min_size=PREFIX_ACCOUNTS + 1, max_size=PREFIX_ACCOUNTS + 1
    ),
    used=st.integers(0, PREFIX_ACCOUNTS),
)
@settings(max_examples=10, deadline=None)
def test_prefixes_and_others_add_up_to_the_total(rows: list[tuple[int, ...]], used: int) -> None:
    accounts = np.zeros(PREFIX_ACCOUNTS + 1, PREFIX_ACCOUNT)
    for at, row in enumerate(rows):
        if at < used or at == PREFIX_ACCOUNTS:
            accounts[at] = (at + 1 if at < used else 0, *row)
    watch = EngineWatch()
    view = sharing_view(accounts, watch.sample().stats, watch.ledger.limits)
    assert view is not None
    parts = [*view.prefixes, view.others]
    assert len(parts) == used + 1
    for name in SUMMED:
        assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(view.total, name))
    assert view.total.overhead_seconds == pytest.approx(sum(getattr(view.total, name) for name in PARTS))
    useful = [part.hit_tokens + part.forked_tokens for part in view.prefixes]
    assert useful == sorted(useful, reverse=True)
    assert plain(view)["total"]["hits"] == view.total.hits
