"""Every wait has one cause at a time, and the causes add up to the whole of it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.words import Event, RequestClass, WaitCause
from tests.engine.rig import STEP_NS, Rig, request

_WAIT_BEGINS = (Event.ARRIVED, Event.PREEMPTED)
_WAIT_ENDS = (Event.ADMITTED, Event.CANCELLED, Event.FINISHED)


def waits_by_events(rig: Rig) -> dict[int, float]:
    """Seconds every request has waited until the last publication, from the times of its events and its arrival."""
    events, ended, sample = rig.reader.events(0).records, rig.summaries(), rig.sample()
    live = sample.slots
    arrivals = dict(zip(live.serial.tolist(), live.arrived_ns.tolist(), strict=True))
    arrivals |= dict(zip(ended["serial"].tolist(), ended["arrived_ns"].tolist(), strict=True))
    waited: dict[int, float] = defaultdict(float)
    began: dict[int, int] = {}
    for record in events:
        serial, event, time_ns = int(record["serial"]), Event(int(record["event"])), int(record["time_ns"])
        if event in _WAIT_BEGINS:
            began[serial] = arrivals[serial] if event is Event.ARRIVED else time_ns
        elif event in _WAIT_ENDS and serial in began:
            waited[serial] += (time_ns - began.pop(serial)) / 1e9
    for serial, since in began.items():
        waited[serial] += (sample.now_ns - since) / 1e9
    return waited


def waits_by_clocks(rig: Rig) -> dict[int, float]:
    """The same from the clocks, as a reader adds them up: live requests from their slots, ended ones from summaries."""
    sample = rig.sample()
    waits = dict(zip(sample.slots.serial.tolist(), sample.wait_seconds().sum(axis=1).tolist(), strict=True))
    ended = rig.summaries()
    return waits | dict(zip(ended["serial"].tolist(), ended["wait_seconds"].sum(axis=1).tolist(), strict=True))


def waits_ms(rig: Rig, request_id: str) -> dict[str, float]:
    """Non-zero waits of an ended request by cause, in milliseconds to the nanosecond."""
    ended = rig.summaries()
    row = ended[ended["id_head"] == request_id.encode()][0]["wait_seconds"]
    return {WaitCause(int(i)).word: round(float(row[i]) * 1e3, 6) for i in np.flatnonzero(row)}


actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 30), st.integers(1, 12)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("pause"), st.integers(1, 50_000_000), st.just(0)),
    ),
    min_size=1,
    max_size=40,
)


@given(actions=actions, forks=st.integers(1, 3), late_ns=st.integers(0, 3 * STEP_NS))
@settings(max_examples=60)
def test_waits_by_cause_add_up_to_the_whole_wait_at_every_moment(
    actions: list[tuple[str, int, int]], forks: int, late_ns: int
) -> None:
    rig = Rig(capacity_blocks=14, max_num_seqs=4, max_num_batched_tokens=10, max_model_len_tokens=42, max_waiting=99)
    for number, (action, amount, tokens) in enumerate(actions):
        if action == "submit":
            arrived = rig.clock.now_ns() - late_ns
            rig.submit(request(f"r{number}", amount, tokens, n=1 + number % forks, arrived_ns=arrived))
        elif action == "cancel":
            rig.cancel(f"r{amount}")
        elif action == "step":
            rig.step(amount)
        else:
            rig.clock.advance(amount)
            rig.ledger.publish_now(idle=False)
        expected, found = waits_by_events(rig), waits_by_clocks(rig)
        assert expected.keys() <= found.keys()
        for serial, seconds in found.items():
            assert seconds == pytest.approx(expected[serial], abs=1e-9), serial
    rig.finish()
    found = waits_by_clocks(rig)
    observed = sum(
        rig.observed("wait", cause=cause.word, **{"class": kind.word})[1]
        for cause in WaitCause
        for kind in RequestClass
    )
    assert observed == pytest.approx(sum(found.values()), abs=1e-9)


def test_an_arrival_waits_for_the_step_until_a_schedule_looks_at_it() -> None:
    rig = Rig()
    rig.submit(request("a"))
    rig.clock.advance(5 * STEP_NS)
    rig.ledger.publish_now(idle=False)
    sample = rig.sample()
    assert sample.wait_causes().tolist() == [WaitCause.STEP]
    assert sample.wait_seconds()[0, WaitCause.STEP] == pytest.approx(5e-3)
    rig.finish()
    assert waits_ms(rig, "a") == {"step": 5}
    assert rig.observed("wait", cause="step", **{"class": "default"})[0] == 1


def test_a_request_that_came_during_a_step_has_waited_for_that_step() -> None:
    rig = Rig()
    rig.submit(request("a", 8, 20))
    rig.step()
    came = rig.clock.now_ns()
    rig.step()
    rig.submit(request("b", arrived_ns=came), request("late", arrived_ns=rig.clock.now_ns() + 10**12))
    rig.finish()
    assert waits_ms(rig, "b") == {"step": 1}
    assert waits_ms(rig, "late") == {}, "an arrival in the future arrives now"


def test_a_full_running_set_makes_the_queue_wait_for_batch_slots() -> None:
    rig = Rig(max_num_seqs=1)
    rig.submit(request("a", 8, 5), request("b", 8, 3, request_class="batch"), request("c", 8, 1))
    rig.finish()
    assert waits_ms(rig, "a") == {}
    assert waits_ms(rig, "b") == {"batch_slots": 5}
    assert waits_ms(rig, "c") == {"batch_slots": 8}
    assert rig.observed("wait", cause="batch_slots", **{"class": "batch"}) == (1, 5e-3)
    assert rig.observed("wait", cause="batch_slots", **{"class": "default"}) == (1, 8e-3)


def test_a_long_prefill_makes_the_queue_wait_for_the_token_budget() -> None:
    rig = Rig(max_num_batched_tokens=8)
    rig.submit(request("a", 24, 2), request("b", 8, 2))
    rig.finish()
    assert waits_ms(rig, "b") == {"token_budget": 3}


def test_a_short_pool_makes_the_queue_wait_for_the_pool() -> None:
    rig = Rig(capacity_blocks=8)
    rig.submit(request("a", 20, 4), request("b", 20, 4))
    rig.step(2)
    assert set(rig.sample().wait_causes().tolist()) == {-1, WaitCause.POOL}
    rig.finish()
    assert waits_ms(rig, "b") == {"pool": 4}


def test_the_head_waits_for_the_pool_and_whoever_is_behind_it_waits_for_the_same() -> None:
    rig = Rig(capacity_blocks=8)
    rig.submit(request("a", 20, 4), request("big", 20, 4), request("small", 4, 1))
    rig.finish()
    assert waits_ms(rig, "small") == waits_ms(rig, "big") == {"pool": 4}


def test_a_preemption_shuts_admission_for_its_step() -> None:
    rig = Rig(capacity_blocks=6, prefix_caching=False, max_num_batched_tokens=9)
    rig.submit(request("a", 8, 9), request("b", 8, 9))
    while not rig.count("preemptions_total", mode="recompute"):
        rig.step()
    sample = rig.sample()
    assert sorted(sample.wait_causes().tolist()) == [-1, WaitCause.PREEMPTION]
    rig.finish()
    waits = waits_ms(rig, "b")
    assert waits["preemption"] == 1
    assert waits["pool"] > 0
    count, _ = rig.observed("wait", cause="preemption", **{"class": "default"})
    assert count == 1


def test_a_cancelled_wait_is_observed_as_long_as_it_was() -> None:
    rig = Rig(max_num_seqs=1)
    rig.submit(request("a", 8, 9), request("queued"))
    rig.step(2)
    rig.submit(request("unseen"))
    rig.clock.advance(7 * STEP_NS)
    rig.cancel("queued", "unseen")
    assert waits_ms(rig, "queued") == {"batch_slots": 9}
    assert waits_ms(rig, "unseen") == {"step": 7}
    assert rig.observed("wait", cause="step", **{"class": "default"})[0] == 1


def test_time_without_anybody_waiting_is_nobodys_wait() -> None:
    rig = Rig(max_num_seqs=1)
    rig.submit(request("a", 8, 2), request("b", 8, 2))
    rig.finish()
    clock = rig.ledger.stats.wait_clock.copy()
    rig.clock.advance(10**10)
    rig.submit(request("c"))
    rig.finish()
    assert (rig.ledger.stats.wait_clock == clock).all()
    assert waits_ms(rig, "c") == {}


def test_a_slot_is_stamped_whenever_its_wait_changes() -> None:
    rig = Rig(max_num_seqs=1)
    rig.submit(request("a", 8, 9), request("b"))
    rig.step()
    looked = rig.sample().published_seq - 1
    assert int(rig.ledger.slots.changed_seq[1]) == looked
    rig.step(3)
    assert int(rig.ledger.slots.changed_seq[1]) == looked
    rig.submit(request("c"))
    rig.cancel("c")
    assert int(rig.ledger.slots.changed_seq[2]) == rig.sample().published_seq


def test_a_step_costs_the_same_for_one_waiter_and_for_a_thousand() -> None:
    def stores(waiters: int) -> int:
        rig = Rig(max_num_seqs=1, max_waiting=2000, capacity_blocks=64)
        rig.submit(request("a", 8, 50))
        rig.submit(*[request(f"r{i}") for i in range(waiters)])
        rig.step(2)
        before = rig.ledger.slots.wait_seconds.tobytes() + rig.ledger.slots.wait_base.tobytes()
        rig.step(5)
        after = rig.ledger.slots.wait_seconds.tobytes() + rig.ledger.slots.wait_base.tobytes()
        return sum(x != y for x, y in zip(before, after, strict=True))

    assert stores(1) == stores(1000) == 0
