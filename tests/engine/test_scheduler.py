"""Fairness and progress: first come, first served; nobody starves; nothing hangs, however small the pool."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.words import Event, RequestState
from kvledger_engine.messages import NewRequest
from tests.engine.rig import Rig, expected, request


def first_admissions(rig: Rig) -> list[int]:
    """Serials in the order in which they were admitted for the first time."""
    return list(dict.fromkeys(rig.serials_of(Event.ADMITTED)))


@st.composite
def tiny_engines(draw: st.DrawFn) -> tuple[dict[str, Any], list[NewRequest], list[int]]:
    """An engine hardly larger than the largest of its requests, and the requests."""
    requests = [
        request(
            f"r{i}",
            draw(st.integers(1, 20)),
            draw(st.integers(1, 20)),
            n=draw(st.sampled_from([1, 1, 1, 2])),
            temperature=1.0,
            request_class=draw(st.sampled_from(["default", "interactive", "batch"])),
        )
        for i in range(draw(st.integers(1, 12)))
    ]

    def most(r: NewRequest) -> int:
        shared = len(r.prompt) // 4 if r.n > 1 else 0
        return shared + r.n * (-(-(len(r.prompt) + r.max_tokens) // 4) - shared)

    config = {
        "capacity_blocks": max(map(most, requests)) + draw(st.integers(0, 4)),
        "max_num_seqs": draw(st.integers(2, 5)),
        "max_num_batched_tokens": draw(st.integers(5, 40)),
        "max_model_len_tokens": 40,
        "prefix_caching": draw(st.booleans()),
    }
    config["admission_watermark_blocks"] = draw(st.integers(0, config["capacity_blocks"] - 1))
    gaps = draw(st.lists(st.integers(0, 5), min_size=len(requests), max_size=len(requests)))
    return config, requests, gaps


@given(engine=tiny_engines())
@settings(max_examples=50)
def test_in_a_tiny_pool_everybody_is_served_in_order_and_in_bounded_time(
    engine: tuple[dict[str, Any], list[NewRequest], list[int]],
) -> None:
    config, requests, gaps = engine
    rig = Rig(**config)
    for new, gap in zip(requests, gaps, strict=True):
        assert rig.submit(new) == []
        rig.step(gap)
        rig.check()
    # One at a time and in the smallest steps, this is what it takes, twice over for what is computed again.
    alone = sum(r.n * (len(r.prompt) + r.max_tokens) for r in requests)
    rig.finish(within_steps=4 * alone + 50)
    assert rig.outcome.tokens == expected(requests)
    admitted = first_admissions(rig)
    assert admitted == sorted(admitted)
    rig.check_empty()


def test_decodes_come_before_prefills_and_prefills_share_what_is_left_in_order() -> None:
    rig = Rig(max_num_batched_tokens=10)
    rig.submit(request("a", 4, 30), request("b", 4, 30))
    rig.step(2)
    rig.submit(request("c", 19, 9), request("d", 9, 9))
    seen = []
    for _ in range(4):
        rig.step()
        seen.append([int(rig.ledger.slots.computed_tokens[slot]) for slot in range(2, 4)])
    assert seen == [[8, 0], [16, 0], [19, 5], [20, 9]], "8 tokens are left beside two decodes"


def test_a_victim_is_of_the_lowest_class_and_came_last() -> None:
    rig = Rig(capacity_blocks=12, prefix_caching=False)
    rig.submit(
        request("first", 8, 20),
        request("batch", 8, 20, request_class="batch"),
        request("last", 8, 20),
        request("interactive", 8, 20, request_class="interactive"),
    )
    while rig.count("preemptions_total", mode="recompute") < 2:
        rig.step()
    slots = rig.sample().slots
    names = dict(zip(slots.serial.tolist(), slots.id_head.tolist(), strict=True))
    victims = [names[serial] for serial in rig.serials_of(Event.PREEMPTED)]
    assert victims[:2] == [b"batch", b"last"]


def test_a_preempted_request_goes_on_before_whoever_has_waited_longer() -> None:
    rig = Rig(capacity_blocks=6, prefix_caching=False)
    rig.submit(request("a", 8, 12), request("b", 8, 9), request("c", 8, 9))
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") >= 1
    assert [key for key, _ in rig.outcome.finished.items()] == [("a", 0), ("b", 0), ("c", 0)]


def test_tokens_are_neither_lost_nor_told_twice_by_a_preemption() -> None:
    rig = Rig(capacity_blocks=8, prefix_caching=False)
    requests = [request(f"r{i}", 8, 16) for i in range(3)]
    rig.submit(*requests)
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") > 0
    assert rig.outcome.tokens == expected(requests)
    assert rig.count("generation_tokens_total") == 3 * 16
    assert rig.observed("request_tokens", kind="generation") == (3, 48)
    computed_again = rig.count("recomputed_tokens_total")
    assert computed_again > 0
    assert rig.summaries()["preemptions"].sum() == rig.count("preemptions_total", mode="recompute")


def test_only_what_had_been_computed_counts_as_computed_again() -> None:
    rig = Rig(capacity_blocks=6, prefix_caching=False)
    rig.submit(request("a", 8, 9), request("b", 8, 9))
    computed = 0
    while not rig.count("preemptions_total", mode="recompute"):
        computed = int(rig.ledger.slots.computed_tokens[1])
        rig.step()
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") == 1
    assert rig.count("recomputed_tokens_total") == computed


def test_a_slot_forgets_what_its_last_occupant_had_computed() -> None:
    rig = Rig(capacity_blocks=6, prefix_caching=False, max_num_seqs=2, max_waiting=1)
    rig.submit(request("a", 8, 9))
    rig.step()
    rig.submit(request("b", 8, 9))
    while not rig.count("preemptions_total", mode="recompute"):
        rig.step()
    rig.cancel("a", "b")
    rig.submit(request("c", 8, 4))
    rig.step()
    rig.submit(request("d", 8, 4))
    rig.finish()
    assert rig.count("recomputed_tokens_total") == 0


def test_blocks_taken_over_after_a_preemption_are_not_told_as_a_hit() -> None:
    rig = Rig(capacity_blocks=10)
    rig.submit(*[request(f"r{i}", 12, 12) for i in range(3)])
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") > 0
    assert rig.count("prefix_hit_tokens_total") > 0
    assert [message.hit_tokens for message in rig.outcome.finished.values()] == [0, 0, 0]


def test_with_a_prefix_cache_a_preempted_request_computes_less_again() -> None:
    def again(prefix_caching: bool) -> tuple[float, float, float]:
        rig = Rig(capacity_blocks=10, prefix_caching=prefix_caching)
        rig.submit(*[request(f"r{i}", 12, 12) for i in range(3)])
        rig.finish()
        fates = [rig.count("preempted_blocks_total", fate=fate) for fate in ("kept", "recycled")]
        return rig.count("recomputed_tokens_total"), fates[0], fates[1]

    with_cache, without = again(True), again(False)
    assert with_cache[1] > 0
    assert without[1] == 0
    assert with_cache[0] < without[0]


def test_the_sequences_of_a_preempted_prefill_wait_and_come_back_together() -> None:
    rig = Rig(capacity_blocks=14, max_num_batched_tokens=9, prefix_caching=False, max_num_seqs=4)
    old, forks = request("old", 8, 24), request("forks", 24, 3, n=2, temperature=1.0, request_class="batch")
    rig.submit(old)
    rig.step(18)
    rig.submit(forks)
    rig.step()
    assert sorted(rig.sample().slots.state.tolist()) == [RequestState.RUNNING] * 3
    # A pool that shrinks under a prefill: blocks nobody will give back.
    leak(rig, rig.loop._cache.pool.available_blocks)
    rig.step()
    states = dict(zip(rig.sample().slots.id_head.tolist(), rig.sample().slots.state.tolist(), strict=True))
    assert states == {b"old": RequestState.RUNNING, b"forks": RequestState.PREEMPTED}
    assert rig.count("preemptions_total", mode="recompute") == 2
    assert rig.sample().stats.gauge("waiting") == 2
    rig.finish()
    assert rig.outcome.tokens == expected([old, forks])


def leak(rig: Rig, blocks: int) -> None:
    """Take blocks for an owner that will never give them back."""
    rig.ledger.begin()
    rig.loop._cache.pool.take(blocks, np.full(blocks, 10**6, np.uint64), np.zeros(blocks, np.int16))
    rig.ledger.end()


def test_a_lone_sequence_that_cannot_grow_ends_as_pool_exhausted() -> None:
    rig = Rig(capacity_blocks=8)
    rig.submit(request("a", 8, 20), request("b", 8, 2))
    rig.step(2)
    leak(rig, 4)
    rig.finish(within_steps=60)
    assert rig.outcome.reasons == {("a", 0): "pool_exhausted", ("b", 0): "length"}
    assert rig.count("requests_total", finish_reason="pool_exhausted") == 1
    assert len(rig.sample().slots) == 0


def test_a_request_that_no_block_will_ever_come_back_for_ends_as_pool_exhausted() -> None:
    rig = Rig(capacity_blocks=8)
    leak(rig, 7)
    rig.submit(request("a", 20, 2), request("b", 3, 1))
    rig.finish(within_steps=5)
    assert rig.outcome.reasons == {("a", 0): "pool_exhausted", ("b", 0): "length"}


def test_the_watermark_keeps_blocks_free_for_what_runs_but_never_stops_a_lone_request() -> None:
    rig = Rig(capacity_blocks=10, admission_watermark_blocks=4)
    rig.submit(request("a", 12, 8), request("b", 15, 4))
    rig.step()
    assert rig.sample().stats.gauge("waiting") == 1, "4 of 7 blocks left would leave 3"
    rig.finish()
    lone = Rig(capacity_blocks=10, admission_watermark_blocks=9)
    lone.submit(request("a", 12, 8), request("b", 12, 8))
    assert set(lone.finish().reasons.values()) == {"length"}


def test_blocks_promised_to_a_running_prefill_are_not_given_to_the_next_request() -> None:
    rig = Rig(capacity_blocks=9, max_num_batched_tokens=12, prefix_caching=False)
    rig.submit(request("long", 30, 2), request("next", 8, 4))
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") == 0


def test_n_sequences_count_against_the_running_set_from_admission() -> None:
    rig = Rig(max_num_seqs=4)
    rig.submit(request("a", 24, 2, n=3, temperature=1.0), request("b", 4, 2, n=2, temperature=1.0))
    rig.step()
    assert rig.check().stats.gauge("running") == 3
    assert rig.sample().stats.gauge("waiting") == 2
    rig.finish()
    assert len(rig.outcome.finished) == 5


def test_forked_sequences_share_their_prompt_and_copy_what_they_write_into() -> None:
    rig = Rig()
    rig.submit(request("a", 10, 4, n=3, temperature=1.0))
    rig.step()
    slots = rig.sample().slots
    assert slots.table_blocks[:, 0].tolist() == [3, 3, 3]
    assert rig.ledger.stats.values[rig.ledger.stats.gauge("active_blocks")] == 3
    assert slots.parent_serial.tolist() == [0, slots.serial[0], slots.serial[0]]
    rig.step()
    assert rig.count("cow_copies_total") == 2, "the last of three writes in place"
    rig.finish()
    rig.check_empty()


@pytest.mark.parametrize("n", [1, 3])
def test_one_token_asked_for_is_one_token_given(n: int) -> None:
    rig = Rig()
    new = request("a", 9, 1, n=n, temperature=1.0)
    rig.submit(new)
    rig.step()
    assert rig.outcome.tokens == expected([new])
    assert len(rig.outcome.finished) == n
    rig.check_empty()
