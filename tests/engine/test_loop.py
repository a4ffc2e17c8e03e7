"""The engine as a whole: cancellation at any state, ends and what they record, failing steps, idleness, determinism."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.layout import HEADER_BYTES
from kvledger.views import I32
from kvledger.words import CancelCause, Event, FinishReason, RequestState
from kvledger_engine.batch import Batch
from kvledger_engine.cells import CellModel
from kvledger_engine.errors import ComputeLost
from tests.engine.rig import STEP_NS, VOCABULARY, Rig, expected, oracle, request

# -- cancellation -----------------------------------------------------------------------------------------------------


def not_looked_at(rig: Rig) -> None:
    rig.submit(request("x", 8, 9))


def queued(rig: Rig) -> None:
    rig.submit(request("other", 30, 12), request("x", 30, 9))
    rig.step(2)


def in_prefill(rig: Rig) -> None:
    rig.submit(request("x", 30, 9))
    rig.step()


def decoding(rig: Rig) -> None:
    rig.submit(request("x", 8, 20))
    rig.step(6)


def preempted(rig: Rig) -> None:
    rig.submit(request("other", 20, 20), request("x", 8, 20))
    while not rig.count("preemptions_total", mode="recompute"):
        rig.step()


def about_to_be_forked(rig: Rig) -> None:
    rig.submit(request("x", 30, 3, n=2, temperature=1.0))
    rig.step()


def just_forked(rig: Rig) -> None:
    rig.submit(request("x", 9, 9, n=3, temperature=1.0))
    rig.step()


def copied(rig: Rig) -> None:
    rig.submit(request("x", 9, 9, n=3, temperature=1.0))
    rig.step(2)


def partly_ended(rig: Rig) -> None:
    first = oracle([5] * 9, 9, seed=1, temperature=1.0)
    rig.submit(request("x", [5] * 9, 9, n=3, temperature=1.0, seed=1, stop_tokens=[first[2]]))
    rig.step(4)
    assert rig.outcome.reasons == {("x", 0): "stop"}


STATES: dict[Callable[[Rig], None], set[RequestState]] = {
    not_looked_at: {RequestState.WAITING},
    queued: {RequestState.WAITING},
    in_prefill: {RequestState.RUNNING},
    decoding: {RequestState.RUNNING},
    preempted: {RequestState.PREEMPTED},
    about_to_be_forked: {RequestState.RUNNING},
    just_forked: {RequestState.RUNNING},
    copied: {RequestState.RUNNING},
    partly_ended: {RequestState.RUNNING},
}


@pytest.mark.parametrize("cause", CancelCause)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_a_cancelled_request_gives_every_block_back_whatever_it_was_doing(
    state: Callable[[Rig], None], cause: CancelCause
) -> None:
    rig = Rig(capacity_blocks=11, max_num_batched_tokens=16)
    state(rig)
    slots = rig.sample().slots
    mine = slots.id_head == b"x"
    serials = set(slots.serial[mine].tolist())
    assert set(slots.state[mine].tolist()) == STATES[state]
    rig.clock.advance(STEP_NS)
    rig.cancel("x", "nobody", cause=cause)
    sample = rig.check()
    assert b"x" not in sample.slots.id_head
    assert not np.isin(rig.ledger.blocks.owner[rig.ledger.blocks.ref_count > 0], list(serials)).any()
    assert rig.count("cancellations_total", cause=cause.word) == len(serials)
    assert rig.observed("release", cause=cause.word) == (len(serials), 0)
    assert set(rig.serials_of(Event.CANCELLED)) == set(rig.serials_of(Event.RELEASED)[-len(serials) :]) == serials
    rig.finish()
    assert {rig.outcome.reasons["x", i] for i in range(3) if ("x", i) in rig.outcome.reasons} <= {"cancelled", "stop"}
    assert len([key for key in rig.outcome.finished if key[0] == "x"]) >= len(serials)
    rig.check_empty()


@given(
    plan=st.lists(
        st.tuples(st.integers(1, 24), st.integers(1, 12), st.integers(1, 3), st.integers(0, 3), st.integers(0, 14)),
        min_size=1,
        max_size=10,
    )
)
@settings(max_examples=40)
def test_cancels_at_any_moment_leave_no_trace_in_the_others(plan: list[tuple[int, int, int, int, int]]) -> None:
    rig = Rig(capacity_blocks=24, max_num_seqs=4, max_num_batched_tokens=12, max_model_len_tokens=40)
    submitted, cancelled = [], set()
    for number, (prompt, tokens, n, steps, victim) in enumerate(plan):
        new = request(
            f"r{number}", [3] * (prompt // 2) + [number] * (prompt - prompt // 2), tokens, n=n, temperature=1.0
        )
        submitted.append(new)
        assert rig.submit(new) == []
        rig.step(steps)
        cancelled.add(f"r{victim}")
        rig.cancel(f"r{victim}")
        rig.check()
    rig.finish()
    whole = expected(submitted)
    for key, tokens_of in whole.items():
        got = rig.outcome.tokens.get(key, [])
        assert got == tokens_of[: len(got)]
        assert key[0] in cancelled or got == tokens_of
    assert rig.outcome.finished.keys() == whole.keys()
    rig.check_empty()


def test_a_release_counts_from_when_the_client_went_away() -> None:
    rig = Rig()
    rig.submit(request("a", 8, 20))
    rig.step()
    went = rig.clock.now_ns()
    rig.step(3)
    rig.loop.cancel(["a"], CancelCause.DISCONNECT, since_ns=went)
    assert rig.observed("release", cause="disconnect") == (1, 3e-3)


def test_cancelling_nobody_publishes_nothing() -> None:
    rig = Rig()
    before = rig.sample().published_seq
    rig.cancel("nobody")
    assert rig.loop.step() == []
    assert rig.sample().published_seq == before


# -- ends -------------------------------------------------------------------------------------------------------------


def test_a_stop_token_ends_a_sequence_and_is_its_last_token() -> None:
    rig = Rig()
    whole = oracle([1, 2, 3], 10)
    rig.submit(request("a", [1, 2, 3], 10, stop_tokens=[whole[4], 999 % VOCABULARY]))
    rig.finish()
    stop_at = min(i for i, token in enumerate(whole) if token in (whole[4], 999 % VOCABULARY))
    assert rig.outcome.tokens["a", 0] == whole[: stop_at + 1]
    assert rig.outcome.reasons == {("a", 0): "stop"}
    assert rig.count("requests_total", finish_reason="stop") == 1


def test_a_stop_token_in_the_last_place_is_a_stop_and_one_end() -> None:
    rig = Rig()
    whole = oracle([1, 2, 3], 4)
    assert whole[3] not in whole[:3]
    rig.submit(request("a", [1, 2, 3], 4, stop_tokens=[whole[3]]))
    rig.finish()
    assert rig.outcome.tokens["a", 0] == whole
    assert rig.outcome.reasons == {("a", 0): "stop"}


def test_an_end_is_told_with_what_was_used() -> None:
    rig = Rig()
    rig.submit(request("a", 17, 5))
    rig.finish()
    rig.submit(request("again", request("a", 17).prompt, 3, n=2, temperature=1.0))
    rig.finish()
    first, second = rig.outcome.finished["a", 0], rig.outcome.finished["again", 1]
    assert (first.prompt_tokens, first.output_tokens, first.hit_tokens, first.reason) == (17, 5, 0, "length")
    assert (second.prompt_tokens, second.output_tokens, second.hit_tokens) == (17, 3, 16)


def test_a_summary_holds_the_whole_life_of_a_request() -> None:
    rig = Rig(max_num_seqs=1)
    began = rig.clock.now_ns()
    rig.submit(request("a", 8, 3), request("b", 8, 5, tenant="t", request_class="batch"))
    rig.finish()
    a, b = rig.summaries()
    assert (a["arrived_ns"], a["first_block_ns"], a["first_token_ns"]) == (began, began, began + STEP_NS)
    assert a["finished_ns"] == a["released_ns"] == began + 3 * STEP_NS
    assert b["first_block_ns"] == began + 3 * STEP_NS
    assert (b["prompt_tokens"], b["output_tokens"], b["peak_blocks"], b["released_blocks"]) == (8, 5, 3, 3)
    assert b["finish_reason"] == FinishReason.LENGTH
    assert rig.sample().tenants[b["tenant"]] == "t"
    # Two blocks from admission, a third from the second step on, where the first output is stored: five steps.
    assert b["block_seconds"] == pytest.approx((2 + 3 * 4) * STEP_NS / 1e9)


def test_latencies_are_observed_by_class_and_count_from_arrival() -> None:
    rig = Rig()
    rig.submit(
        request("a", 8, 4, arrived_ns=rig.clock.now_ns() - 5 * STEP_NS), request("b", 8, 3, request_class="batch")
    )
    rig.finish()
    assert rig.observed("time_to_first_token", **{"class": "default"}) == (1, 6e-3)
    assert rig.observed("time_to_first_token", **{"class": "batch"}) == (1, 1e-3)
    assert rig.observed("inter_token_latency", **{"class": "default"}) == (3, 3e-3)
    assert rig.observed("inter_token_latency", **{"class": "batch"}) == (2, 2e-3)
    assert rig.observed("time_to_first_block", **{"class": "default"}) == (1, 5e-3)
    assert rig.observed("request_duration", finish_reason="length") == (2, 12e-3)
    assert rig.observed("request_peak_blocks") == (2, 6)
    assert rig.observed("request_tokens", kind="prompt") == (2, 16)
    assert rig.count("prompt_tokens_total") == 16
    assert rig.count("engine_steps_total") == rig.sample().stats.gauge("steps") == 4
    assert rig.observed("step", phase="model") == (4, 4e-3)


def test_block_seconds_of_a_request_and_of_its_tenant_agree_and_are_priced() -> None:
    rig = Rig(price_per_hour=3600.0, capacity_blocks=10)
    rig.submit(request("a", 8, 6, tenant="t1"), request("b", 12, 6, n=2, temperature=1.0, tenant="t2"))
    rig.finish()
    rig.ledger.publish_now()
    ended, by_tenant = rig.summaries(), rig.sample().stats.tenant_counter("block_seconds_total")
    assert by_tenant is not None
    for row, name in enumerate(rig.sample().tenants):
        if name in ("t1", "t2"):
            of_requests = ended["block_seconds"][ended["tenant"] == row].sum()
            assert of_requests > 0
            assert by_tenant[name] == pytest.approx(of_requests, rel=1e-6)
    rig.submit(request("c", 1, 1))
    cost = rig.sample().stats.tenant_counter("cost_total")
    assert cost is not None
    assert cost["t1"] == pytest.approx(by_tenant["t1"] * 1.0 / 10)


def test_without_a_price_nothing_costs_anything() -> None:
    rig = Rig()
    rig.submit(request("a"))
    rig.finish()
    assert rig.count("cost_total") == 0


# -- steps that fail --------------------------------------------------------------------------------------------------


class Failing(CellModel):
    """A cell model that raises in one step, after half its work."""

    def __init__(self, at_step: int, error: Exception) -> None:
        super().__init__(capacity_blocks=64, block_size_tokens=4, vocab_size=VOCABULARY)
        self._left, self._error = at_step, error

    def execute(self, batch: Batch) -> I32:
        sampled = super().execute(batch)
        self._left -= 1
        if self._left == 0:
            raise self._error
        return sampled


@pytest.mark.parametrize(
    ("error", "reason"), [(RuntimeError("device lost"), "engine_error"), (MemoryError(), "out_of_memory")]
)
@pytest.mark.parametrize("at_step", [1, 2, 3, 6])
def test_a_failing_step_ends_its_requests_and_only_those(at_step: int, error: Exception, reason: str) -> None:
    rig = Rig(compute=Failing(at_step, error), max_num_seqs=3, max_num_batched_tokens=8)
    requests = [request("a", 6, 5), request("forks", 14, 5, n=2, temperature=1.0), request("later", 9, 5)]
    rig.submit(*requests)
    rig.finish()
    ended = {key for key, how in rig.outcome.reasons.items() if how == reason}
    assert ended
    assert set(rig.outcome.reasons.values()) <= {"length", reason}
    whole = expected(requests)
    for key in whole.keys() - ended:
        assert rig.outcome.tokens[key] == whole[key]
    assert rig.count("requests_total", finish_reason=reason) == len(ended)
    rig.check_empty()


@pytest.mark.parametrize("at_step", [1, 2, 3, 6])
def test_a_lost_compute_ends_every_request_and_takes_no_other(at_step: int) -> None:
    failing = Failing(at_step, ComputeLost("the device is gone"))
    rig = Rig(compute=failing, max_num_seqs=3, max_num_batched_tokens=8)
    rig.submit(request("a", 6, 5), request("forks", 14, 5, n=2, temperature=1.0), request("waits", 9, 5))
    rig.step(at_step)
    assert rig.loop.compute_lost
    assert not rig.loop.has_work
    assert len(rig.outcome.reasons) == 4
    assert set(rig.outcome.reasons.values()) <= {"length", "engine_error"}
    assert "engine_error" in rig.outcome.reasons.values()
    rig.check_empty()
    assert [answer.reason for answer in rig.submit(request("late"))] == ["draining"]


def test_a_failing_prefill_ends_the_sequences_to_be_forked_from_it_too() -> None:
    rig = Rig(compute=Failing(1, RuntimeError("device lost")), max_num_batched_tokens=8)
    rig.submit(request("a", 14, 5, n=3, temperature=1.0))
    rig.step()
    assert rig.outcome.reasons == {("a", index): "engine_error" for index in range(3)}
    rig.check_empty()


def test_a_copy_that_failed_leaves_no_pin() -> None:
    rig = Rig(compute=Failing(2, RuntimeError("device lost")))
    rig.submit(request("a", 9, 5, n=3, temperature=1.0))
    rig.step(2)
    assert rig.count("cow_copies_total") == 2
    rig.check_empty()


def test_a_compute_that_answers_with_the_wrong_number_of_tokens_is_a_failing_step() -> None:
    class Mute(CellModel):
        def execute(self, batch: Batch) -> I32:
            return super().execute(batch)[:-1]

    rig = Rig(compute=Mute(capacity_blocks=64, block_size_tokens=4, vocab_size=VOCABULARY))
    rig.submit(request("a"))
    assert rig.finish().reasons == {("a", 0): "engine_error"}
    rig.check_empty()


# -- idleness, publications, determinism ------------------------------------------------------------------------------


def test_an_engine_without_work_says_so_and_publishes_nothing_more() -> None:
    rig = Rig()
    rig.submit(request("a", 8, 2))
    assert rig.sample().stats.gauge("idle") == 0
    rig.step()
    assert rig.sample().stats.gauge("idle") == 0
    rig.step()
    assert not rig.loop.has_work
    sample = rig.sample()
    assert sample.stats.gauge("idle") == 1
    assert sample.control["idle_since_ns"] == rig.clock.now_ns()
    rig.clock.advance(10**9)
    assert rig.loop.step() == []
    assert rig.sample().published_seq == sample.published_seq


def test_cancelling_the_last_request_leaves_the_engine_idle_and_its_end_to_be_told() -> None:
    rig = Rig()
    rig.submit(request("a", 8, 20))
    rig.step(3)
    rig.cancel("a")
    assert rig.sample().stats.gauge("idle") == 1
    seq = rig.sample().published_seq
    assert rig.loop.has_work
    rig.finish()
    assert rig.outcome.reasons == {("a", 0): "cancelled"}
    assert rig.sample().published_seq == seq


def test_a_step_is_two_publications_and_the_compute_runs_in_neither() -> None:
    seen: list[tuple[int, int]] = []

    class Watching(CellModel):
        def execute(self, batch: Batch) -> I32:
            control = rig.reader.sample(now_ns=rig.clock.now_ns()).control
            seen.append((control["published_seq"], control["writing_seq"]))
            return super().execute(batch)

    rig = Rig(compute=Watching(capacity_blocks=64, block_size_tokens=4, vocab_size=VOCABULARY))
    rig.submit(request("a", 8, 1))
    before = rig.sample().published_seq
    rig.step()
    assert seen == [(before + 1, before + 1)]
    assert rig.sample().published_seq == before + 2


def drive(seed: int) -> bytes:
    """A storm on a virtual clock; the ledger after it, without its header page."""
    rng = np.random.default_rng(seed)
    rig = Rig(capacity_blocks=30, max_num_seqs=5, max_num_batched_tokens=20, price_per_hour=2.0)
    for number in range(60):
        prompt = [1] * int(rng.integers(0, 12)) + rng.integers(0, 256, int(rng.integers(1, 12))).tolist()
        rig.submit(request(f"r{number}", prompt, int(rng.integers(1, 20)), n=int(rng.integers(1, 3)), temperature=1.0))
        rig.step(int(rng.integers(0, 4)))
        rig.clock.advance(int(rng.integers(0, 3 * STEP_NS)))
        rig.cancel(f"r{rng.integers(0, 100)}")
    rig.finish()
    rig.check_empty()
    return bytes(rig.ledger.image)[HEADER_BYTES:]


def test_the_same_storm_on_a_virtual_clock_writes_the_same_ledger() -> None:
    first = drive(1)
    assert drive(1) == first
    assert drive(2) != first
