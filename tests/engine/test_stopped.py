"""Sequences whose text is complete: ended from outside as if they had drawn a stop token, with every block back."""

from __future__ import annotations

import pytest

from kvledger_engine.messages import Stop
from tests.engine.rig import STEP_NS, Rig, request


def stop(rig: Rig, request_id: str, index: int = 0) -> None:
    rig.loop.stop([Stop(request_id=request_id, index=index, since_ns=rig.clock.now_ns())])


def test_a_stopped_sequence_ends_as_stop_and_its_blocks_are_back_at_once() -> None:
    rig = Rig()
    rig.submit(request("x", 8, 40))
    rig.step(3)
    rig.clock.advance(STEP_NS)
    stop(rig, "x")
    rig.check_empty()
    assert rig.finish().reasons == {("x", 0): "stop"}
    assert rig.count("requests_total", finish_reason="stop") == 1
    assert rig.count("requests_total", finish_reason="cancelled") == 0
    assert rig.observed("release", cause="finish") == (1, 0.0)


def test_the_other_sequences_of_the_request_go_on() -> None:
    rig = Rig()
    rig.submit(request("x", 9, 9, n=3, temperature=1.0))
    rig.step(3)
    stop(rig, "x", 1)
    rig.check()
    assert rig.finish().reasons == {("x", 0): "length", ("x", 1): "stop", ("x", 2): "length"}
    rig.check_empty()


def test_a_preempted_sequence_can_be_stopped() -> None:
    rig = Rig(capacity_blocks=12)
    rig.submit(request("first", 20, 20), request("second", 8, 20))
    while not rig.count("preemptions_total", mode="recompute"):
        rig.step()
    stop(rig, "second")
    rig.check()
    assert rig.finish().reasons == {("first", 0): "length", ("second", 0): "stop"}
    rig.check_empty()


@pytest.mark.parametrize("steps", [0, 1, 60])
def test_a_stop_for_what_is_unknown_has_ended_or_has_no_token_yet_changes_nothing(steps: int) -> None:
    rig = Rig(max_num_batched_tokens=8)
    rig.submit(request("x", 12, 5))
    rig.step(steps)
    before = rig.ledger.seq
    stop(rig, "x" if steps < 60 else "gone")
    stop(rig, "x", 7)
    assert rig.ledger.seq == before
    assert rig.finish().reasons == {("x", 0): "length"}
