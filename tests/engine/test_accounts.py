"""Prefix accounts: whatever happens, they add up to the counters, and who shares nothing pays for nobody."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.clock import Clock, RealClock, VirtualClock
from kvledger.layout import PREFIX_ACCOUNTS
from kvledger.views import I32
from kvledger.words import ReleaseCause
from kvledger.writer import Ledger
from kvledger_engine.accounts import PrefixAccounts, Price
from kvledger_engine.batch import Batch
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from tests.engine.cachekit import MAX_TOKENS, Kit, shared_memory, small_limits
from tests.engine.rig import SMALL, VOCABULARY, Rig, request

SECONDS = ("lookup_seconds", "reference_seconds", "index_seconds", "copy_seconds")
MOVES = st.lists(
    st.tuples(st.sampled_from(("start", "start", "step", "fork", "end")), st.integers(0, 5), st.integers(0, 5)),
    max_size=30,
)


@given(moves=MOVES)
@settings(max_examples=40, deadline=None)
def test_whatever_is_done_the_accounts_add_up_to_the_counters(moves: list[tuple[str, int, int]]) -> None:
    kit = Kit(memory=shared_memory(small_limits(capacity=24)))
    ticks = count(step=1000)
    kit.kv._metering.now_ns = lambda: next(ticks)
    live: dict[int, int] = {}
    forked: list[int] = []
    for move, slot, other in moves:
        if move == "start" and slot not in live:
            tokens = [(other + at // 4) % 3 for at in range(5 + 3 * other)]
            if kit.start(slot, tokens) is not None:
                live[slot] = len(tokens)
        elif move == "step":
            after = {at: tokens + 1 for at, tokens in live.items() if tokens + 1 < MAX_TOKENS}
            slots, ends = np.array(list(after), np.intp), np.array(list(after.values()), np.intp)
            if after and int(kit.kv.blocks_needed(slots, ends).sum()) <= kit.kv.pool.available_blocks:
                kit.step(after)
                live |= after
        elif move == "fork" and slot in live and other not in live:
            forked.append(int(kit.slots.computed_tokens[slot]))
            kit.fork(slot, other)
            live[other] = live[slot]
        elif move == "end" and slot in live:
            kit.end(slot, ReleaseCause.FINISH)
            del live[slot]
        _check_sums(kit)
    rows = kit.reader.prefix_accounts()
    assert (int(rows["forks"].sum()), int(rows["forked_tokens"].sum())) == (len(forked), sum(forked))


def _check_sums(kit: Kit) -> None:
    accounts, stats = kit.reader.prefix_accounts(), kit.ledger.stats
    of = {name: stats.values[stats.counter(name)] for name in _COUNTERS}
    seconds = sum(float(accounts[name].sum()) for name in SECONDS)
    assert seconds == pytest.approx(of["sharing_overhead_seconds_total"], rel=1e-12, abs=1e-15)
    assert int(accounts["hit_tokens"].sum()) == of["prefix_hit_tokens_total"]
    assert int(accounts["queried_tokens"].sum()) == of["prefix_queried_tokens_total"]
    assert int(accounts["copied_blocks"].sum()) == of["cow_copies_total"]


_COUNTERS = (
    "sharing_overhead_seconds_total",
    "prefix_hit_tokens_total",
    "prefix_queried_tokens_total",
    "cow_copies_total",
)


@given(
    entries=st.lists(st.tuples(st.integers(0, 3 * PREFIX_ACCOUNTS), st.integers(0, 5), st.integers(0, 4)), max_size=400)
)
@settings(max_examples=20, deadline=None)
def test_more_prefixes_than_rows_lose_their_row_and_nothing_else(entries: list[tuple[int, int, int]]) -> None:
    kit = Kit(memory=shared_memory(small_limits()))
    accounts, hits = PrefixAccounts(kit.ledger), 0
    for key, slot, blocks in entries:
        accounts.enter(slot, key)
        accounts.admitted(slot, 100, blocks * 4)
        accounts.spent(Price.LOOKUP, slot, 0.5)
        hits += blocks * 4
        rows = kit.ledger.prefixes.accounts
        named = rows["key"][:-1][rows["key"][:-1] != 0]
        assert len(set(named.tolist())) == len(named)
        assert key == 0 or key in named
    rows = kit.ledger.prefixes.accounts
    assert int(rows["hit_tokens"].sum()) == hits
    assert int(rows["admissions"].sum()) == len(entries)
    assert float(rows["lookup_seconds"].sum()) == 0.5 * len(entries)


def test_a_prefix_that_was_of_use_keeps_its_row_while_others_come_and_go() -> None:
    kit = Kit(memory=shared_memory(small_limits()))
    accounts = PrefixAccounts(kit.ledger)
    accounts.enter(0, 77)
    accounts.admitted(0, 100, 64)
    for key in range(1000, 1000 + 3 * PREFIX_ACCOUNTS):
        accounts.enter(1, key)
        accounts.admitted(1, 100, 0)
    rows = kit.ledger.prefixes.accounts
    assert rows["hit_tokens"][rows["key"] == 77].tolist() == [64]


def test_who_is_only_looked_up_takes_no_row_from_a_prefix() -> None:
    kit = Kit(memory=shared_memory(small_limits()))
    accounts = PrefixAccounts(kit.ledger)
    for key in range(1, 2 * PREFIX_ACCOUNTS + 1):
        accounts.enter(0, key, looking=True)
        accounts.spent(Price.LOOKUP, 0, 1.0)
    rows = kit.ledger.prefixes.accounts
    assert sorted(rows["key"][:-1].tolist()) == list(range(1, PREFIX_ACCOUNTS + 1))
    assert rows["lookup_seconds"].tolist() == [1.0] * PREFIX_ACCOUNTS + [float(PREFIX_ACCOUNTS)]
    accounts.enter(0, 5 * PREFIX_ACCOUNTS)
    assert rows["key"][0] == 5 * PREFIX_ACCOUNTS, "who is admitted takes the row of the least useful one"


def test_giving_references_back_is_a_price_of_the_prefix_and_giving_back_ones_own_blocks_is_none() -> None:
    kit = Kit(memory=shared_memory(small_limits(capacity=24)))
    ticks = count(step=1000)
    kit.kv._metering.now_ns = lambda: next(ticks)
    prompt = list(range(13))
    assert kit.start(0, prompt) == 0
    assert kit.start(1, prompt) == 12, "three blocks of four tokens are shared, and a fourth one is its own"
    overhead = kit.ledger.stats.counter("sharing_overhead_seconds_total")

    def price_of_end(slot: int) -> float:
        before = kit.ledger.stats.values[overhead]
        kit.end(slot, ReleaseCause.FINISH)
        return kit.ledger.stats.values[overhead] - before

    assert price_of_end(0) == 0, "whoever computed a prefix has blocks to give back in any case"
    assert price_of_end(1) == pytest.approx(1e-6 * 3 / 4)
    rows = kit.reader.prefix_accounts()
    assert rows["reference_seconds"].tolist().count(0.0) == len(rows) - 1
    assert float(rows["reference_seconds"].sum()) == pytest.approx(2e-6 + 1e-6 * 3 / 4), "two were looked up and taken"


def test_each_prefix_has_the_hits_of_its_own_requests() -> None:
    rig = Rig(capacity_blocks=64)
    first, second = list(range(20)), list(range(50, 70))
    for name, prompt in (("a", first), ("b", second), ("c", first), ("d", first)):
        assert rig.submit(request(name, prompt, max_tokens=2)) == []
        rig.finish()
    rows = rig.reader.prefix_accounts()
    named = rows[:-1][rows["key"][:-1] != 0]
    found = sorted(zip(named["admissions"].tolist(), named["hits"].tolist(), named["hit_tokens"].tolist(), strict=True))
    assert found == [(1, 0, 0), (3, 2, 32)]
    assert int(rows["admissions"][-1]) == 0


def test_sequences_beyond_the_first_are_credited_with_the_prompt_that_they_did_not_compute() -> None:
    rig = Rig(capacity_blocks=64)
    assert rig.submit(request("four", list(range(22)), max_tokens=3, n=4), request("one", list(range(50, 72)))) == []
    rig.finish()
    rows = rig.reader.prefix_accounts()
    found = zip(*(rows[name].tolist() for name in ("admissions", "forks", "forked_tokens", "hit_tokens")), strict=True)
    assert sorted(row for row in found if any(row)) == [(1, 0, 0, 0), (1, 3, 3 * 22, 0)]


class _SlowCopies(CellModel):
    """Says that each copy of a block took a quarter of a second."""

    def execute(self, batch: Batch) -> I32:
        sampled = super().execute(batch)
        assert (batch.copy_time.seconds > 0) == (len(batch.copy_source) > 0)
        batch.copy_time.seconds = 0.25 * len(batch.copy_source)
        return sampled


@pytest.mark.parametrize("clock", [RealClock(), VirtualClock()])
def test_the_time_of_a_copy_itself_is_a_price_of_the_prefix_it_was_made_for(clock: Clock) -> None:
    config = EngineConfig(**SMALL)
    ledger = Ledger.in_memory(config.limits(), clock=clock)
    loop = EngineLoop(config, ledger, _SlowCopies(capacity_blocks=64, block_size_tokens=4, vocab_size=VOCABULARY))
    loop.submit_many([request("three", list(range(22)), 3, n=3), request("one", list(range(50, 72)))])
    while loop.has_work:
        loop.step()
    rows = ledger.prefixes.accounts
    assert sorted(rows["copied_blocks"][rows["key"] > 0].tolist()) == [0, 2]
    seconds = dict(zip(rows["copied_blocks"].tolist(), rows["copy_seconds"].tolist(), strict=True))
    if clock.virtual:
        assert seconds[2] == 0, "a virtual ledger does not depend on how fast the machine is"
    else:
        assert seconds[2] > 0.5
        assert seconds[0] == 0
    total = sum(float(rows[name].sum()) for name in SECONDS)
    assert total == pytest.approx(ledger.stats.values[ledger.stats.counter("sharing_overhead_seconds_total")])


def test_without_prefix_caching_nobody_has_a_prefix() -> None:
    rig = Rig(prefix_caching=False)
    assert rig.submit(request("a", 20)) == []
    rig.finish()
    rows = rig.reader.prefix_accounts()
    assert not rows["key"].any()
    assert not rows["hit_tokens"].any()


def test_the_pace_of_prompts_is_that_of_steps_that_are_mostly_prompts() -> None:
    rig = Rig(max_num_batched_tokens=64)
    assert rig.submit(request("a", 40, max_tokens=20)) == []
    rig.finish()
    stats = rig.sample().stats
    # One step of 1 ms computed the prompt; the decodes after it are no prompts.
    assert stats.gauge("prefill_seconds") == pytest.approx(0.001)
    assert stats.gauge("prefill_tokens") == 40
