"""What an observation says of a ledger: counts that add up, waits by cause, and unknown where nothing is known."""

from __future__ import annotations

import numpy as np
import pytest

from kvledger.clock import VirtualClock
from kvledger.limits import Group, Limits
from kvledger.words import CancelCause, RequestState
from kvledger.writer import Ledger
from kvledger_agent.observation import Observation, PoolView, RequestsView
from kvledger_agent.observe import seconds_to_exhaustion
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch, ToyWatch, source_over
from tests.ledger.toy import Toy, toy_limits


def request(
    name: str, prompt: int, tokens: int, tenant: str = "acme", kind: str = "default", start: int = 0
) -> NewRequest:
    return NewRequest(
        request_id=name,
        prompt=[(start + i) % 256 for i in range(prompt)],
        max_tokens=tokens,
        tenant=tenant,
        request_class=kind,
    )


def pool(observation: Observation) -> PoolView:
    assert observation.pool is not None
    return observation.pool


def requests(observation: Observation) -> RequestsView:
    assert observation.requests is not None
    return observation.requests


def test_free_cached_and_active_add_up_and_sharing_shows() -> None:
    watch = EngineWatch()
    for number in range(3):
        watch.loop.submit(request(f"r{number}", 18, 20))
        watch.loop.step()
    observation = watch.look()

    view, (group,) = pool(observation), observation.groups
    assert (view.free_blocks or 0) + (view.cached_blocks or 0) + (view.active_blocks or 0) == view.capacity_blocks
    assert group.active_blocks == view.active_blocks
    assert (group.logical_blocks or 0) > (group.active_blocks or 0)
    assert group.shared_blocks == 4
    assert group.tail_waste_slots == (group.logical_blocks or 0) * 4 - int(watch.ledger.slots.computed_tokens.sum())


def test_committed_is_what_running_requests_may_still_take_and_headroom_what_is_left() -> None:
    watch = EngineWatch()
    watch.loop.submit(request("one", 8, 24))
    watch.loop.step()
    view = pool(watch.look())

    held = view.active_blocks or 0
    assert view.committed_blocks == (8 + 24) // 4 - held
    assert view.headroom_blocks == 64 - held - view.committed_blocks


def test_every_waiting_request_has_one_cause_and_one_not_looked_at_waits_for_the_step() -> None:
    watch = EngineWatch(max_num_seqs=2)
    for number in range(4):
        watch.loop.submit(request(f"r{number}", 4, 30, tenant=f"t{number}", kind="batch", start=50 * number))
    watch.loop.step()
    watch.clock.advance(3 * NS)
    watch.loop.submit(request("fresh", 4, 4, kind="interactive"))
    view = requests(watch.look())

    assert view.waiting is not None
    assert {labels: n for labels, n in view.waiting.items() if n} == {
        ("batch_slots", "batch"): 2.0,
        ("step", "interactive"): 1.0,
    }
    assert view.live is not None
    assert {labels: n for labels, n in view.live.items() if n} == {
        ("running", "batch"): 2.0,
        ("waiting", "batch"): 2.0,
        ("waiting", "interactive"): 1.0,
    }
    assert view.oldest_wait_seconds is not None
    assert set(view.oldest_wait_seconds) == {("batch_slots", "t2"), ("batch_slots", "t3"), ("step", "acme")}
    assert view.oldest_wait_seconds["batch_slots", "t2"] == pytest.approx(3.0, abs=0.01)


def test_a_waiting_request_that_no_pool_could_hold_is_counted() -> None:
    watch = EngineWatch(capacity_blocks=4, max_num_seqs=1)
    watch.loop.submit(request("runs", 4, 4))
    watch.loop.step()
    ledger = watch.ledger
    watch.loop.submit(request("waits", 4, 4))
    slot = int(np.flatnonzero(ledger.slots.state == RequestState.WAITING)[0])
    assert requests(watch.look()).never_fit == 0

    ledger.slots.max_tokens[slot] = 60

    assert requests(watch.look()).never_fit == 1


def test_the_oldest_request_that_ended_and_holds_blocks_shows_its_age() -> None:
    watch = ToyWatch()
    slot = watch.admit(1)
    assert requests(watch.look()).oldest_finishing_seconds == 0.0
    watch.ledger.begin()
    watch.toy.slots.changed_seq[slot], watch.toy.slots.state[slot] = watch.ledger.seq, RequestState.FINISHING
    watch.toy.slots.finishing_ns[slot] = watch.ledger.now_ns
    watch.ledger.end()

    assert requests(watch.look()).oldest_finishing_seconds == pytest.approx(1.0)


def test_the_peak_of_the_last_minute_outlives_the_spike_between_two_samples() -> None:
    watch = ToyWatch(capacity=200)
    slot = watch.admit(150)
    watch.ledger.begin()
    watch.toy.finish(slot)
    watch.toy.count()
    watch.ledger.end()

    # The toy's ring of peaks holds eight seconds.
    assert pool(watch.look()).active_blocks == 0
    assert pool(watch.look()).peak_active_blocks == 150
    assert pool(watch.looks(60)).peak_active_blocks == 0


def test_a_pool_that_fills_says_when_it_will_be_full_and_one_that_does_not_says_nothing() -> None:
    watch = ToyWatch(capacity=200, max_requests=100)
    assert not pool(watch.look()).growth_known
    for _ in range(12):
        watch.admit(2)
        observation = watch.look()
    filling = pool(observation)

    assert filling.growth_known
    assert filling.seconds_to_exhaustion == pytest.approx((filling.headroom_blocks or 0) / 2.0, rel=0.1)
    emptied = pool(watch.looks(70))
    assert (emptied.growth_known, emptied.seconds_to_exhaustion) == (True, None)


def test_no_headroom_left_is_zero_seconds_and_unknown_headroom_is_unknown() -> None:
    assert seconds_to_exhaustion(-5, 1.0) == 0.0
    assert seconds_to_exhaustion(None, 1.0) is None
    assert seconds_to_exhaustion(10, None) is None
    assert seconds_to_exhaustion(10, 0.0) is None


def test_pinned_blocks_are_counted_by_kind_and_pins_are_not_sharing() -> None:
    watch = ToyWatch()
    block = watch.toy.table(watch.admit(2))[0]
    watch.ledger.begin()
    watch.toy.pin(block)
    watch.toy.pin(block)
    watch.toy.count()
    watch.ledger.end()
    observation = watch.look()

    pinned = pool(observation).pinned_blocks
    assert pinned is not None
    assert {kind: n for kind, n in pinned.items() if n} == {"transfer": 1}
    assert observation.groups[0].shared_blocks == 0


def test_groups_are_observed_apart() -> None:
    clock = VirtualClock()
    ledger = Ledger.in_memory(toy_limits(groups=2), clock=clock)
    toy = Toy(ledger)
    ledger.begin()
    toy.admit(3)
    toy.count()
    ledger.end()

    observation = source_over(ledger).look()
    first, second = observation.groups

    assert (first.name, first.logical_blocks, first.active_blocks) == ("g0", 3, 3)
    assert (second.name, second.logical_blocks, second.active_blocks) == ("g1", 3, 3)
    assert pool(observation).active_blocks == 6, "a block belongs to one group: what groups hold adds up to the pool's"


def test_unknown_is_never_zero() -> None:
    observation = ToyWatch().look()

    view, group = pool(observation), observation.groups[0]
    assert (view.budget_bytes, view.reserve_bytes, view.seconds_to_exhaustion) == (None, None, None)
    assert (group.block_bytes, group.bytes_per_token) == (None, None)
    assert requests(observation).tenant_quota_blocks is None
    assert requests(observation).effective_concurrency is None
    assert "cost_total" not in observation.totals.counters
    assert "cow_bytes_total" not in observation.totals.counters
    assert observation.liveness.heartbeat_age_seconds is None, "virtual time has no heartbeat age"


def test_a_priced_engine_has_a_cost_and_the_agents_own_price_wins() -> None:
    watch = EngineWatch(price_per_hour=3600.0)
    watch.loop.submit(request("one", 40, 20))
    for _ in range(15):
        watch.loop.step()
    counted = watch.look().totals.counters
    used = counted["block_seconds_total"]["acme",]

    assert counted["cost_total"]["acme",] == pytest.approx(used / 64, rel=0.1)
    priced = source_over(watch.ledger, price_per_hour=7200.0).look().totals.counters
    assert priced["cost_total"]["acme",] == pytest.approx(used / 32)


def test_restarts_are_counted_from_the_epoch() -> None:
    assert ToyWatch().look().totals.counters["engine_restarts_total"] == {(): 0.0}


def test_the_longest_free_run_is_what_a_contiguous_allocator_could_serve() -> None:
    watch = ToyWatch(capacity=20)
    slots = [watch.admit(2) for _ in range(10)]
    for slot in (slots[0], slots[3], slots[4], slots[9]):
        watch.ledger.begin()
        watch.toy.finish(slot)
        watch.toy.count()
        watch.ledger.end()

    assert pool(watch.look()).longest_free_run_blocks == 4


def test_quotas_are_shown_for_tenants_that_have_one() -> None:
    watch = ToyWatch()
    watch.ledger.tenants.quota_blocks[watch.ledger.tenant_column("acme")] = 12
    watch.ledger.tenant_column("free")

    assert requests(watch.look()).tenant_quota_blocks == {("acme",): 12.0}


def test_numbers_out_of_range_in_a_damaged_slot_are_shown_as_far_as_they_make_sense() -> None:
    watch = ToyWatch()
    slot = watch.admit(2)
    slots = watch.toy.slots
    slots.tenant[slot], slots.request_class[slot], slots.state[slot] = -7, 200, RequestState.WAITING
    slots.prompt_tokens[slot], slots.max_tokens[slot] = -5, 2**31 - 1

    view = requests(watch.look())

    assert view.live is not None
    assert view.live["waiting", "default"] == 1.0
    assert {tenant for _, tenant in view.oldest_wait_seconds or ()} == {"other"}


def test_an_engine_with_all_its_cancels_and_refusals_shows_them_by_reason() -> None:
    watch = EngineWatch(max_waiting=1)
    watch.loop.submit(request("too-long", 70, 4))
    watch.loop.submit(request("gone", 4, 20))
    watch.loop.step()
    watch.loop.cancel(["gone"], CancelCause.API)
    counters = watch.look().totals.counters

    assert counters["rejections_total"]["context_too_long",] == 1.0
    assert counters["cancellations_total"]["api",] == 1.0
    assert counters["requests_total"]["cancelled", "acme"] == 1.0


def test_limits_without_a_context_limit_do_not_bound_requests() -> None:
    limits = Limits(engine="e", capacity_blocks=8, max_requests=2, groups=(Group(block_size_tokens=4),))
    ledger = Ledger.in_memory(limits, clock=VirtualClock())
    ledger.begin()
    ledger.slots.serial[0], ledger.slots.state[0] = 1, RequestState.RUNNING
    ledger.slots.prompt_tokens[0], ledger.slots.max_tokens[0] = 100, 100
    ledger.end()

    assert pool(source_over(ledger).look()).committed_blocks == 50
