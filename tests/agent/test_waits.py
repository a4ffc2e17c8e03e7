"""Waits, request by request: what first tokens and whole requests are made of, and who waits longest for what."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.snapshot import Sample
from kvledger_agent.lives import lives_of
from kvledger_agent.plain import plain
from kvledger_agent.waits import WaitsView, quantiles, waits_view
from kvledger_engine.messages import NewRequest
from tests.agent.rig import NS, EngineWatch


def waits(watch: EngineWatch, window_seconds: float = 60.0) -> tuple[WaitsView, Sample]:
    sample = watch.source.reader.sample()
    watch.source.summaries.pull()
    return waits_view(sample, lives_of(sample, watch.source.summaries.records()), window_seconds), sample


def served(tenants: tuple[str, ...] = ("acme", "umbrella"), steps: int = 14) -> EngineWatch:
    """An engine of one slot: each request waits for the ones before it, a second a step."""
    watch = EngineWatch(max_num_seqs=1)
    for number, tenant in enumerate(tenants):
        request = NewRequest(
            request_id=f"r{number}", prompt=[1, 2, 3], max_tokens=4, tenant=tenant, request_class="interactive"
        )
        watch.loop.submit(request)
    for _ in range(steps):
        watch.clock.advance(NS)
        watch.loop.step()
    return watch


def test_the_means_of_the_parts_add_up_to_the_mean_of_the_whole() -> None:
    view, _ = waits(served())

    timings = [timing for row in view.rows for timing in (row.first_token, row.whole) if timing is not None]
    assert len(timings) == 8, "all, two tenants and one class, first token and whole"
    for timing in timings:
        assert sum(part.mean for part in timing.parts.values()) == pytest.approx(timing.seconds.mean)


def test_the_allocators_time_is_a_part_of_its_own_taken_out_of_prefill_and_decode() -> None:
    watch = served()
    sample = watch.source.reader.sample()
    watch.source.summaries.pull()
    lives = lives_of(sample, watch.source.summaries.records())

    without, half = (waits_view(sample, lives, 60.0, allocating=part) for part in (0.0, 0.5))

    assert half.allocating == 0.5
    for before, after in zip(without.rows, half.rows, strict=True):
        for old, new in ((before.first_token, after.first_token), (before.whole, after.whole)):
            assert old is not None
            assert new is not None
            ran = sum(old.parts[part].mean for part in ("prefill", "decode") if part in old.parts)
            assert new.parts["allocation"].mean == pytest.approx(ran / 2)
            assert sum(part.mean for part in new.parts.values()) == pytest.approx(old.seconds.mean)
            assert new.seconds.p95 == pytest.approx(old.seconds.p95)


def test_an_engine_that_does_not_time_its_allocator_has_no_such_part() -> None:
    view, _ = waits(served())

    assert view.allocating == 0.0, "a virtual clock knows no time within a step"
    assert view.allocation is not None
    assert view.allocation.p99 == 0.0, "the sum of all says so, though the bucket goes up to a microsecond"
    assert all("allocation" not in row.whole.parts for row in view.rows if row.whole is not None)


def test_whole_is_told_of_those_that_were_refused_after_a_wait() -> None:
    watch = EngineWatch(max_num_seqs=1, queue_timeout_seconds=3.0)
    for name in ("runs", "waits"):
        watch.submit(NewRequest(request_id=name, prompt=[1, 2, 3], max_tokens=30, tenant=name.split(",")[0]))
    for _ in range(6):
        watch.clock.advance(NS)
        watch.step()

    view, _ = waits(watch)

    refused = next(row for row in view.rows if row.tenant == "waits")
    assert refused.first_token is None
    assert refused.whole is not None
    assert refused.whole.requests == 1
    assert set(refused.whole.parts) <= {"wait_step", "wait_batch_slots"}


def test_who_waits_for_a_slot_waits_for_nothing_else_and_decodes_afterwards() -> None:
    view, _ = waits(served())

    second = next(row for row in view.rows if row.tenant == "umbrella")
    assert second.first_token is not None
    assert second.whole is not None
    assert "decode" not in second.first_token.parts
    assert max(second.first_token.parts, key=lambda part: second.first_token.parts[part].mean) == "wait_batch_slots"  # type: ignore[union-attr]
    assert second.whole.parts["decode"].mean > 0


def test_the_oldest_waiter_of_each_cause_is_named_and_those_behind_it_are_counted() -> None:
    view, sample = waits(served(("a", "b", "c"), steps=2))

    (oldest,) = view.oldest
    assert (oldest.cause, oldest.waiting, oldest.tenant) == ("batch_slots", 2, "b")
    assert oldest.seconds == pytest.approx((sample.now_ns - int(sample.slots.queued_ns.min())) / NS)
    assert oldest.id_head == "r1"


def test_a_window_that_nobody_ended_in_has_no_whole() -> None:
    watch = served()
    watch.clock.advance(100 * NS)
    watch.ledger.publish_now(idle=True)

    view, _ = waits(watch, window_seconds=10)

    assert [(row.tenant, row.first_token, row.whole) for row in view.rows] == [(None, None, None)]
    assert view.oldest == ()
    assert json.dumps(plain(view), allow_nan=False)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_percentiles_are_values_that_occurred_and_never_fall(values: list[float]) -> None:
    found = quantiles(np.array(values))

    assert {found.p50, found.p95, found.p99} <= set(values)
    assert min(values) <= found.p50 <= found.p95 <= found.p99 <= max(values)
    assert found.mean == pytest.approx(sum(values) / len(values))
