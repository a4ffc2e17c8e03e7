"""Budgets at work: caps, reservations, turns, classes, and what each waiting request is told to wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from kvledger.words import Event, RequestState, WaitCause
from kvledger_engine.messages import NewRequest
from kvledger_engine.quotafile import parse_quotas
from tests.engine.rig import STEP_NS, Rig, expected, request
from tests.engine.test_waits import waits_ms

PLAIN_CLASSES = {"interactive": {"may_preempt": False}, "batch": {"reuse_window": 1}}


def rig_of(
    tenants: Mapping[str, Any], *, classes: Mapping[str, Any] = PLAIN_CLASSES, default: Any = None, **more: Any
) -> Rig:
    """An engine with budgets; classes are alike unless said otherwise."""
    document = {"tenants": tenants, "classes": classes, "default": default or {}}
    return Rig(quotas=parse_quotas(document), **({"prefix_caching": False} | more))


def of(tenant: str, name: str, prompt: Any = 8, tokens: int = 8, **more: Any) -> NewRequest:
    return request(name, prompt, tokens, tenant=tenant, **more)


def causes(rig: Rig) -> dict[str, str]:
    """What each waiting request waits for."""
    sample = rig.sample()
    found = zip(sample.slots.id_head.tolist(), sample.wait_causes().tolist(), strict=True)
    return {name.decode(): WaitCause(cause).word for name, cause in found if cause >= 0}


def held(rig: Rig, tenant: str) -> int:
    return int(rig.sample().stats.tenant_blocks[tenant])


def states(rig: Rig) -> dict[str, RequestState]:
    slots = rig.sample().slots
    return {n.decode(): RequestState(s) for n, s in zip(slots.id_head.tolist(), slots.state.tolist(), strict=True)}


# -- caps -------------------------------------------------------------------------------------------------------------


def test_a_tenant_never_holds_more_than_its_maximum_though_the_pool_is_empty() -> None:
    rig = rig_of({"a": {"max_blocks": 7}}, capacity_blocks=60)
    requests = [of("a", f"r{i}", 8, 12) for i in range(4)]
    rig.submit(*requests)
    while rig.loop.has_work:
        rig.step()
        assert held(rig, "a") <= 7
    assert rig.outcome.tokens == expected(requests)
    assert rig.count("preemptions_total", mode="recompute") > 0, "two prompts fit, their answers do not"


def test_who_is_at_its_quota_waits_for_it_and_others_pass() -> None:
    rig = rig_of({"a": {"max_blocks": 5}})
    rig.submit(of("a", "first", 16, 4), of("a", "second", 16, 4), of("b", "other", 16, 4))
    rig.step()
    assert causes(rig) == {"second": "tenant_quota"}
    rig.finish()
    assert waits_ms(rig, "second") == {"tenant_quota": 4}
    assert waits_ms(rig, "other") == {}
    assert rig.observed("wait", cause="tenant_quota", **{"class": "default"}) == (1, 4e-3)


def test_one_long_request_cannot_hold_the_pool_beyond_its_tenants_cap() -> None:
    rig = rig_of({"a": {"max_blocks": 8}}, capacity_blocks=16)
    refused = rig.submit(of("a", "long", 20, 13), of("a", "fits", 20, 12), of("b", "other", 20, 12))
    assert [(answer.request_id, answer.reason, answer.retryable) for answer in refused] == [
        ("long", "exceeds_quota", False)
    ]
    assert "9 blocks" in refused[0].advice
    assert "8 of 16" in refused[0].advice
    rig.finish()
    assert rig.outcome.reasons == {("fits", 0): "length", ("other", 0): "length"}
    assert rig.count("rejections_total", reason="exceeds_quota") == 1


def test_a_prompt_in_chunks_is_charged_from_its_admission() -> None:
    rig = rig_of({"a": {"max_blocks": 8}}, max_num_batched_tokens=8, max_num_seqs=8)
    rig.submit(of("a", "long", 28, 4), of("a", "next", 8, 4))
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") == 0
    assert waits_ms(rig, "next")["tenant_quota"] > 0


def test_who_gives_way_at_a_cap_is_of_the_same_tenant() -> None:
    rig = rig_of({"a": {"max_blocks": 6}}, capacity_blocks=40)
    rig.submit(of("a", "old", 8, 12), of("a", "young", 8, 12), of("b", "bystander", 8, 20, request_class="batch"))
    while not rig.count("preemptions_total", mode="recompute"):
        rig.step()
    assert states(rig)["young"] == RequestState.PREEMPTED
    assert states(rig)["bystander"] == states(rig)["old"] == RequestState.RUNNING


def test_tenants_without_a_name_have_the_default_each_for_itself() -> None:
    rig = rig_of({}, default={"max_blocks": 4})
    rig.submit(of("x", "x1", 12, 4), of("x", "x2", 12, 4), of("y", "y1", 12, 4))
    rig.step()
    assert causes(rig) == {"x2": "tenant_quota"}
    rig.finish()


# -- reservations -----------------------------------------------------------------------------------------------------


def test_what_is_reserved_is_there_in_the_first_schedule_though_others_want_all() -> None:
    rig = rig_of({"kept": {"reserved_blocks": 10}}, capacity_blocks=24, max_num_seqs=8)
    rig.submit(*[of("greedy", f"g{i}", 8, 30) for i in range(7)])
    rig.step(20)
    assert held(rig, "greedy") <= 14
    rig.submit(of("kept", "mine", 30, 10))
    rig.step()
    assert states(rig)["mine"] == RequestState.RUNNING
    preempted = set(rig.serials_of(Event.PREEMPTED))
    rig.finish()
    assert waits_ms(rig, "mine") == {}
    mine = int(rig.summaries()["serial"][rig.summaries()["id_head"] == b"mine"][0])
    assert mine not in preempted | set(rig.serials_of(Event.PREEMPTED)), "within a reservation nobody gives way"


def test_what_is_reserved_is_there_in_a_step_that_preempts_somebody_else() -> None:
    rig = rig_of({"kept": {"reserved_blocks": 6}}, capacity_blocks=16)
    rig.submit(*[of("greedy", f"g{i}", 8, 16) for i in range(4)])
    before = 0.0
    while rig.loop.has_work:
        rig.submit(of("kept", f"k{rig.clock.now_ns()}", 8, 1))
        rig.step()
        if rig.count("preemptions_total", mode="recompute") > before:
            break
    assert rig.count("preemptions_total", mode="recompute") > 0
    waiting = causes(rig)
    assert waiting
    assert set(waiting.values()) == {"preemption"}
    assert not [name for name in waiting if name.startswith("k")]
    rig.finish()


def test_cached_blocks_lie_in_a_reservation_and_are_given_up_for_its_owner() -> None:
    rig = rig_of({"kept": {"reserved_blocks": 12}}, capacity_blocks=16, prefix_caching=True)
    for i in range(4):
        rig.submit(of("other", f"o{i}", 12, 4))
        rig.finish()
    assert rig.sample().stats.gauge("cached_blocks") == 12
    rig.submit(of("kept", "mine", 44, 4))
    rig.step()
    assert held(rig, "kept") == 11
    assert rig.count("evictions_total") > 0


def test_what_is_beyond_a_reservation_waits_like_anybody_else() -> None:
    rig = rig_of({"kept": {"reserved_blocks": 4}}, capacity_blocks=12)
    rig.submit(of("greedy", "g", 30, 2))
    rig.step()
    rig.submit(of("kept", "more", 20, 2))
    rig.step()
    assert causes(rig) == {"more": "pool"}
    rig.finish()


def test_a_low_priority_with_a_reservation_is_served_under_endless_higher_ones() -> None:
    rig = rig_of(
        {"low": {"reserved_blocks": 5, "priority": -5}, "high": {"priority": 5}}, capacity_blocks=20, max_num_seqs=3
    )
    rig.submit(*[of("low", f"low{i}", 8, 4) for i in range(3)])
    for i in range(60):
        rig.submit(of("high", f"high{i}", 8, 6))
        rig.step()
    assert {key[0] for key in rig.outcome.finished} >= {"low0", "low1", "low2"}


def test_the_watermark_is_kept_back_from_what_is_lent_and_not_from_a_reservation() -> None:
    rig = rig_of({"kept": {"reserved_blocks": 8}}, capacity_blocks=20, admission_watermark_blocks=4)
    rig.submit(of("other", "one", 16, 4), of("other", "two", 20, 4))
    rig.step()
    assert causes(rig) == {"two": "pool"}, "of 12 that are lent 4 run, and 4 of the rest are kept back"
    rig.submit(of("kept", "mine", 28, 4))
    rig.step()
    assert "mine" not in causes(rig)
    rig.finish()


# -- turns ------------------------------------------------------------------------------------------------------------


def saturate(
    weights: Mapping[str, float], *, steps: int, sizes: Mapping[str, tuple[int, int]], **more: Any
) -> dict[str, float]:
    """Block-seconds of tenants that always have requests waiting, over many residences."""
    rig = rig_of({name: {"weight": weight} for name, weight in weights.items()}, **({"capacity_blocks": 40} | more))
    number = 0
    for _ in range(steps):
        for column, name in enumerate(weights):
            while rig.loop._queue.requests_of(column) < 8:
                number += 1
                rig.submit(of(name, f"{name}{number}", *sizes[name]))
        rig.step()
    seconds = rig.sample().stats.tenant_counter("block_seconds_total")
    assert seconds is not None
    return {name: seconds[name] for name in weights}


@pytest.mark.parametrize(
    ("weights", "sizes"),
    [
        ({"a": 1, "b": 1}, {"a": (8, 8), "b": (8, 8)}),
        ({"a": 1, "b": 2, "c": 4}, {"a": (8, 8), "b": (8, 8), "c": (8, 8)}),
        ({"a": 1, "b": 1}, {"a": (4, 4), "b": (30, 20)}),
        ({"a": 3, "b": 1}, {"a": (12, 4), "b": (20, 16)}),
    ],
)
def test_block_seconds_of_tenants_that_always_want_more_are_as_their_weights(
    weights: dict[str, float], sizes: dict[str, tuple[int, int]]
) -> None:
    had = saturate(weights, steps=600, sizes=sizes)
    whole, parts = sum(had.values()), sum(weights.values())
    shares = {name: round(seconds / whole, 4) for name, seconds in had.items()}
    for name, weight in weights.items():
        assert shares[name] == pytest.approx(weight / parts, abs=0.03), shares


def test_who_was_away_has_saved_nothing_up_and_owes_nothing() -> None:
    rig = rig_of({"a": {}, "b": {}}, capacity_blocks=16, max_waiting=200)
    for i in range(50):
        rig.submit(of("a", f"alone{i}", 8, 8))
    rig.step(200)
    before = rig.sample().stats.tenant_counter("block_seconds_total")
    for i in range(60):
        rig.submit(of("a", f"a{i}", 8, 8), of("b", f"b{i}", 8, 8))
    rig.step(150)
    after = rig.sample().stats.tenant_counter("block_seconds_total")
    assert before is not None
    assert after is not None
    gained = {name: after[name] - before[name] for name in "ab"}
    assert gained["b"] / (gained["a"] + gained["b"]) == pytest.approx(0.5, abs=0.05), gained


def test_whose_turn_it_is_not_waits_for_its_fair_share() -> None:
    rig = rig_of({"a": {}, "b": {}}, capacity_blocks=16, max_num_seqs=8)
    rig.submit(of("a", "a1", 20, 12), of("a", "a2", 8, 8))
    rig.step(3)
    rig.submit(of("b", "big", 36, 8), of("a", "small", 4, 4))
    rig.step()
    assert causes(rig) == {"big": "pool", "small": "fair_share"}
    rig.finish()
    assert waits_ms(rig, "small")["fair_share"] > 0


def test_who_would_not_fit_either_waits_for_the_pool_and_not_for_its_share() -> None:
    rig = rig_of({"a": {}, "b": {}}, capacity_blocks=16)
    rig.submit(of("a", "a1", 40, 12))
    rig.step(3)
    rig.submit(of("b", "big", 36, 8), of("a", "also big", 36, 4))
    rig.step()
    assert causes(rig) == {"big": "pool", "also big": "pool"}
    rig.finish()


def test_the_higher_priority_goes_first_and_gives_way_last() -> None:
    rig = rig_of({"low": {}, "high": {"priority": 1}}, capacity_blocks=12, max_num_seqs=2)
    rig.submit(of("low", "l1", 8, 20), of("low", "l2", 8, 20), of("high", "h1", 8, 20), of("high", "h2", 8, 20))
    rig.step()
    assert causes(rig) == {"l1": "batch_slots", "l2": "batch_slots"}
    rig.finish()
    rig = rig_of({"low": {}, "high": {"priority": 1}}, capacity_blocks=12)
    rig.submit(of("low", "old", 8, 24), of("high", "young", 8, 24))
    while not rig.count("preemptions_total", mode="recompute"):
        rig.step()
    assert states(rig)["old"] == RequestState.PREEMPTED
    rig.finish()


def test_a_tenant_may_have_so_many_waiting_and_no_more() -> None:
    rig = rig_of({"a": {"max_waiting": 2}}, max_num_seqs=1)
    rig.submit(of("b", "runs", 8, 20))
    rig.step()
    assert rig.submit(of("a", "a1"), of("a", "a2"), of("b", "b1")) == []
    refused = rig.submit(of("a", "a3"))
    assert [(answer.reason, answer.retryable) for answer in refused] == [("tenant_quota", True)]
    assert refused[0].advice.startswith("2 requests of the tenant wait already")
    rig.cancel("a1")
    assert rig.submit(of("a", "a4")) == []
    rig.finish()


def test_a_request_beyond_its_tenants_context_is_refused_and_told_whose_limit_it_is() -> None:
    rig = rig_of({"a": {"max_context": 20}})
    refused = rig.submit(of("a", "long", 15, 6), of("a", "fits", 15, 5), of("b", "other", 15, 6))
    assert [(answer.request_id, answer.reason) for answer in refused] == [("long", "context_too_long")]
    assert "the tenant's context holds 20" in refused[0].advice


# -- classes ----------------------------------------------------------------------------------------------------------


def test_a_class_computes_no_more_prompt_tokens_a_step_than_its_budget() -> None:
    rig = rig_of({}, classes={"interactive": {"step_tokens": 8}})
    interactive = {"request_class": "interactive"}
    rig.submit(of("a", "i1", 20, 2, **interactive), of("a", "i2", 20, 2, **interactive), of("a", "d", 20, 2))
    rig.step()
    computed = rig.ledger.slots.computed_tokens[:3].tolist()
    assert computed == [8, 0, 20]
    assert causes(rig) == {"i2": "class_budget"}
    rig.finish()
    assert waits_ms(rig, "i2")["class_budget"] > 0
    assert waits_ms(rig, "d") == {}


def test_a_request_beyond_its_classes_context_is_refused() -> None:
    rig = rig_of({}, classes={"interactive": {"max_context": 20}})
    refused = rig.submit(
        of("a", "long", 15, 6, request_class="interactive"), of("a", "batch", 15, 6, request_class="batch")
    )
    assert [(answer.request_id, answer.reason) for answer in refused] == [("long", "context_too_long")]
    assert "class interactive holds 20" in refused[0].advice


def test_an_interactive_request_takes_the_blocks_of_a_running_batch() -> None:
    rig = rig_of({}, classes={}, capacity_blocks=12)
    batch = {"request_class": "batch"}
    requests = [
        of("a", "b1", 16, 8, **batch),
        of("a", "b2", 16, 8, **batch),
        of("a", "i", 12, 4, request_class="interactive"),
    ]
    rig.submit(*requests[:2])
    rig.step(2)
    rig.submit(requests[2])
    rig.step()
    assert states(rig) == {"b1": RequestState.RUNNING, "b2": RequestState.PREEMPTED, "i": RequestState.RUNNING}
    assert causes(rig) == {"b2": "preemption"}
    rig.finish()
    assert waits_ms(rig, "i") == {}
    assert rig.outcome.tokens == expected(requests)
    rig.check_empty()


def test_nothing_is_preempted_that_would_not_be_enough() -> None:
    rig = rig_of({}, classes={}, capacity_blocks=12)
    rig.submit(of("a", "d", 20, 4, request_class="interactive"), of("a", "b", 8, 4, request_class="batch"))
    rig.step()
    rig.submit(of("a", "i", 30, 4, request_class="interactive"))
    rig.step()
    assert causes(rig) == {"i": "pool"}
    assert rig.count("preemptions_total", mode="recompute") == 0
    rig.finish()


def test_a_batch_that_has_given_way_twice_is_left_alone() -> None:
    def preempted(before: int) -> float:
        rig = rig_of({}, classes={}, capacity_blocks=10)
        rig.submit(of("a", "b", 24, 12, request_class="batch"))
        rig.step()
        rig.ledger.slots.preemptions[0] = before
        rig.submit(of("a", "i", 20, 4, request_class="interactive"))
        rig.step()
        assert causes(rig) == ({"b": "preemption"} if before < 2 else {"i": "pool"})
        return rig.count("preemptions_total", mode="recompute")

    assert [preempted(before) for before in range(4)] == [1, 1, 0, 0]


def test_batches_of_another_tenant_give_way_once_it_has_had_more_than_its_share() -> None:
    rig = rig_of({"a": {}, "b": {}}, classes={}, capacity_blocks=12)
    rig.submit(of("a", "batch", 28, 8, request_class="batch"))
    rig.step(5)
    rig.submit(of("b", "i", 24, 4, request_class="interactive"))
    rig.step()
    assert causes(rig) == {"i": "pool"}, "b begins where a is"
    rig.step()
    assert causes(rig) == {"batch": "preemption"}
    rig.finish()


def test_what_is_held_within_a_reservation_is_taken_by_nobody_else() -> None:
    rig = rig_of({"a": {"reserved_blocks": 9}, "b": {}, "c": {}}, classes={}, capacity_blocks=24)
    rig.submit(of("a", "batch", 28, 8, request_class="batch"), of("c", "more", 28, 8, request_class="interactive"))
    rig.step(3)
    rig.submit(of("b", "i", 36, 4, request_class="interactive"))
    rig.step(3)
    assert causes(rig) == {"i": "pool"}
    assert rig.count("preemptions_total", mode="recompute") == 0
    rig.finish()


def test_of_batches_the_one_with_the_longest_cached_prefix_goes_first_but_not_for_ever() -> None:
    rig = rig_of({}, classes={"batch": {"reuse_window": 4}}, prefix_caching=True, max_num_seqs=1, capacity_blocks=40)
    shared = [9] * 24
    rig.submit(of("a", "warm", [*shared, 1], 2, request_class="batch"))
    rig.finish()
    rig.submit(of("a", "cold", 24, 2, request_class="batch"))
    number = 0
    while ("cold", 0) not in rig.outcome.finished:
        while rig.loop._queue.requests_of(0) < 4:
            number += 1
            rig.submit(of("a", f"hot{number}", [*shared, number], 2, request_class="batch"))
        rig.step()
        assert number < 100, "the head was passed for ever"
    assert list(rig.outcome.finished)[1] == ("hot1", 0)
    passed = [key for key in rig.outcome.finished if key[0].startswith("hot")]
    assert len(passed) == 32


def test_a_batch_is_not_passed_for_ever_by_interactive_requests_of_its_tenant() -> None:
    rig = rig_of({}, max_num_seqs=1)
    rig.submit(of("a", "first", 8, 2, request_class="interactive"))
    rig.step()
    rig.submit(of("a", "b", 8, 2, request_class="batch"))
    number = 0
    while ("b", 0) not in rig.outcome.finished:
        while rig.loop._queue.requests_of(0) < 4:
            number += 1
            rig.submit(of("a", f"i{number}", 8, 2, request_class="interactive"))
        rig.step()
        assert number < 100, "the batch was passed for ever"
    assert len(rig.outcome.finished) == 34


# -- prefixes across tenants ------------------------------------------------------------------------------------------


def hits(rig: Rig, *requests: NewRequest) -> list[int]:
    """Prompt tokens found cached, one request after the other."""
    for new in requests:
        rig.submit(new)
        rig.finish()
    return [rig.outcome.finished[new.request_id, 0].hit_tokens for new in requests]


def test_tenants_share_prefixes_only_within_a_share_group() -> None:
    prompt = list(range(17))
    tenants = {"a": {"share_group": "g"}, "b": {"share_group": "g"}, "c": {}}
    rig = rig_of(tenants, prefix_caching=True)
    asked = [of(tenant, tenant, prompt, 2) for tenant in ("c", "d", "a", "b")]
    assert hits(rig, *asked) == [0, 0, 0, 16]
    assert hits(rig, of("c", "again", prompt, 2), of("a", "salted", prompt, 2, salt="x")) == [16, 0]


def test_without_quotas_too_every_tenants_prefixes_are_its_own() -> None:
    prompt = list(range(17))
    rig = Rig()
    assert hits(rig, of("a", "a1", prompt), of("b", "b1", prompt), of("a", "a2", prompt)) == [0, 0, 16]


def test_a_shared_block_is_charged_to_whom_brought_it_in_until_nobody_holds_it() -> None:
    tenants = {"a": {"share_group": "g"}, "b": {"share_group": "g"}}
    rig = rig_of(tenants, prefix_caching=True)
    prompt = list(range(17))
    rig.submit(of("a", "a", prompt, 2))
    rig.step()
    rig.submit(of("b", "b", prompt, 20))
    rig.step()
    assert ("a", 0) in rig.outcome.finished
    assert (held(rig, "a"), held(rig, "b")) == (4, 1), "b holds all five, and brought in the last of them"
    rig.finish()
    assert (held(rig, "a"), held(rig, "b")) == (0, 0)


# -- what stays as it was ---------------------------------------------------------------------------------------------


def test_a_lane_that_waits_for_its_own_leaves_the_queues_clock_and_comes_back() -> None:
    rig = rig_of({"a": {"max_blocks": 4}}, max_num_seqs=2)
    rig.submit(of("a", "a1", 12, 4), of("a", "a2", 12, 4))
    rig.step()
    rig.submit(of("b", "b1", 8, 30), of("b", "b2", 8, 4))
    rig.step()
    assert causes(rig) == {"a2": "tenant_quota", "b2": "batch_slots"}
    rig.clock.advance(3 * STEP_NS)
    rig.finish()
    waited = waits_ms(rig, "a2")
    assert set(waited) <= {"tenant_quota", "batch_slots"}
    assert waited["tenant_quota"] >= 1


def test_blocks_that_are_lost_end_a_request_that_waits_for_its_quota_alone() -> None:
    rig = rig_of({"a": {"max_blocks": 6}}, capacity_blocks=30)
    rig.ledger.begin()
    column = rig.ledger.tenant_column("a")
    rig.loop._cache.pool.take(4, np.full(4, 10**6, np.uint64), np.full(4, column, np.int16))
    rig.ledger.end()
    rig.submit(of("a", "mine", 12, 4), of("b", "other", 12, 4))
    rig.finish(within_steps=20)
    assert rig.outcome.reasons == {("mine", 0): "pool_exhausted", ("other", 0): "length"}
