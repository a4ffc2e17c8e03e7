"""Requests that wait or run for too long: given up at the first step after, counted, with every block back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.words import TURNED_AWAY, Event, FinishReason, RejectionReason
from kvledger_engine.deadlines import Deadlines
from tests.engine.rig import STEP_NS, Rig, expected, request

STEP_SECONDS = STEP_NS / 1e9


def test_a_request_that_waits_too_long_is_refused_before_it_holds_a_block() -> None:
    rig = Rig(max_num_seqs=1, queue_timeout_seconds=5 * STEP_SECONDS)
    rig.submit(request("runs", 8, 40), request("waits", 8, 4))
    rig.step(5)
    assert not rig.outcome.refused
    rig.step()
    refused = rig.outcome.refused["waits"]
    assert (refused.reason, refused.retryable) == ("queue_timeout", True)
    assert "0.0 s" in refused.advice
    assert rig.count("rejections_total", reason="queue_timeout") == 1
    assert rig.count("tenant_rejections_total") == 1
    rig.check()
    assert rig.finish().reasons == {("runs", 0): "length"}
    assert rig.observed("wait", cause="batch_slots", **{"class": "default"}) == (1, 5 * STEP_SECONDS)
    rig.check_empty()


def test_every_sequence_of_a_refused_request_has_its_event_and_a_summary_of_its_wait() -> None:
    rig = Rig(max_num_seqs=3, queue_timeout_seconds=2 * STEP_SECONDS)
    rig.submit(request("runs", 8, 9), request("waits", 8, 4, n=3, temperature=1.0))
    rig.finish()
    assert rig.count("rejections_total", reason="queue_timeout") == 1
    rejected = rig.reader.events(0).records
    rejected = rejected[rejected["event"] == Event.REJECTED]
    assert len(rejected) == 3
    assert set(rejected["detail"].tolist()) == {RejectionReason.QUEUE_TIMEOUT}
    ran, *refused = sorted(rig.summaries(), key=lambda record: record["finish_reason"])
    assert ran["finish_reason"] == FinishReason.LENGTH
    assert len(refused) == 3
    for record in refused:
        assert record["finish_reason"] == TURNED_AWAY
        assert (record["first_block_ns"], record["released_blocks"], record["block_seconds"]) == (0, 0, 0)
        assert record["wait_seconds"].sum() == (record["finished_ns"] - record["arrived_ns"]) / 1e9 > 0
    rig.check_empty()


def test_a_request_is_not_refused_for_a_wait_after_it_has_begun() -> None:
    rig = Rig(capacity_blocks=12, queue_timeout_seconds=3 * STEP_SECONDS)
    requests = [request("first", 20, 20), request("second", 8, 20)]
    rig.submit(*requests)
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") > 0
    assert rig.outcome.tokens == expected(requests)
    assert not rig.outcome.refused


def test_a_request_that_runs_too_long_ends_as_run_timeout_and_gives_every_block_back() -> None:
    rig = Rig(run_timeout_seconds=5 * STEP_SECONDS)
    rig.submit(request("long", 8, 40), request("short", 8, 3), request("forked", 9, 40, n=3, temperature=1.0))
    rig.finish()
    assert rig.outcome.reasons == {
        ("long", 0): "run_timeout",
        ("short", 0): "length",
        **{("forked", index): "run_timeout" for index in range(3)},
    }
    assert rig.outcome.finished["long", 0].output_tokens == 5
    assert rig.count("requests_total", finish_reason="run_timeout") == 4
    assert rig.observed("release", cause="timeout")[0] == 4
    rig.check_empty()


def test_a_run_goes_on_while_it_is_preempted() -> None:
    rig = Rig(capacity_blocks=12, run_timeout_seconds=13 * STEP_SECONDS)
    began_ns = rig.clock.now_ns()
    rig.submit(request("first", 20, 20), request("second", 8, 20))
    rig.finish()
    assert rig.count("preemptions_total", mode="recompute") > 0
    assert rig.outcome.reasons == {("first", 0): "run_timeout", ("second", 0): "run_timeout"}
    assert rig.clock.now_ns() - began_ns <= 15 * STEP_NS
    rig.check_empty()


def test_prefills_that_are_to_be_forked_end_together() -> None:
    rig = Rig(max_num_batched_tokens=8, max_num_seqs=4, run_timeout_seconds=2 * STEP_SECONDS)
    rig.submit(request("forked", 40, 4, n=3, temperature=1.0))
    rig.finish()
    assert rig.outcome.reasons == {("forked", index): "run_timeout" for index in range(3)}
    assert not rig.outcome.tokens
    rig.check_empty()


@pytest.mark.parametrize(("engines", "own", "tokens"), [(None, 3, 3), (9, 3, 3), (3, 9, 3), (3, None, 3)])
def test_the_shorter_timeout_of_engine_and_request_counts(engines: int | None, own: int | None, tokens: int) -> None:
    rig = Rig(run_timeout_seconds=None if engines is None else engines * STEP_SECONDS)
    rig.submit(request("x", 8, 40, run_timeout_seconds=None if own is None else own * STEP_SECONDS))
    assert rig.finish().finished["x", 0].output_tokens == tokens


def test_a_slots_next_occupant_does_not_inherit_a_timeout() -> None:
    rig = Rig(max_num_seqs=1, max_waiting=1, max_requests=2)
    for number in range(3):
        rig.submit(request(f"brief{number}", 8, 2, run_timeout_seconds=9 * STEP_SECONDS, queue_timeout_seconds=9))
        rig.finish()
        rig.submit(request(f"long{number}", 8, 40))
        rig.finish()
        assert rig.outcome.reasons[f"long{number}", 0] == "length"


@settings(max_examples=10)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), min_size=1, max_size=20))
def test_no_one_is_given_up_early_and_no_one_more_than_a_step_late(wanted: list[tuple[int, int]]) -> None:
    rig = Rig(max_num_seqs=2, max_model_len_tokens=48)
    rig.submit(
        *(
            request(f"r{n}", 8, 20, queue_timeout_seconds=wait * STEP_SECONDS, run_timeout_seconds=run * STEP_SECONDS)
            for n, (wait, run) in enumerate(wanted)
        )
    )
    began_ns, gone = rig.clock.now_ns(), dict[str, int]()
    while rig.loop.has_work:
        rig.step()
        gone |= {name: rig.clock.now_ns() - began_ns for name in rig.outcome.refused if name not in gone}
        rig.check()
    for name, after_ns in gone.items():
        # Given up at the start of the step after which its client hears.
        assert 0 <= after_ns - wanted[int(name[1:])][0] * STEP_NS <= 2 * STEP_NS
    for (name, _), end in rig.outcome.finished.items():
        assert end.output_tokens == min(20, wanted[int(name[1:])][1])
    rig.check_empty()


def test_deadlines_of_requests_that_ended_in_time_take_no_memory_for_long() -> None:
    rig = Rig(queue_timeout_seconds=1e6, run_timeout_seconds=1e6)
    for number in range(200):
        rig.submit(request(f"r{number}", 4, 1))
        rig.finish()
    deadlines = rig.loop._deadlines
    assert isinstance(deadlines, Deadlines)
    assert len(deadlines._waits.entries) < 100
    assert len(deadlines._runs.entries) < 100
