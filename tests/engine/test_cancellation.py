"""The cancellation protocol (docs/cancellation.md): every state, every point of a step, every way to be given up.

Whatever it was doing, all of its blocks are back with the first publication after the step in which the cancel came;
the ledger's audit is clean, nobody else's text changes, and the time that took is on the ledger.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kvledger.words import CancelCause, Event, RequestState
from kvledger_engine.messages import NewRequest
from tests.engine.cancelkit import RELEASE_NS, SCENES, Point, Staged, X
from tests.engine.rig import STEP_NS, Rig, expected, request
from tests.engine.test_swaps_machine import host_is_sound

CASES = [(name, point) for name, scene in SCENES.items() for point in scene.points]
DUE = [(name, point) for name, point in CASES if name != "not looked at"]
"""A request that no schedule has seen has no deadline that could have passed."""
A_LITTLE_NS = 1000
PAGE = Path(__file__).parents[2] / "docs" / "cancellation.md"


def nothing_is_held_for(rig: Rig, serials: set[int]) -> None:
    """No block, no table, no pin, no slot and no host block is left of the sequences with these serials."""
    sample = rig.check()
    host_is_sound(rig)
    assert not serials & set(sample.slots.serial.tolist())
    assert not serials & set(sample.pins.holder.tolist())
    held = rig.ledger.blocks.ref_count > 0
    assert not np.isin(rig.ledger.blocks.owner[held], list(serials)).any()


def the_others_go_on(rig: Rig, others: list[NewRequest]) -> None:
    """They get the text that they would have got alone, and nothing is held at the end."""
    rig.finish()
    for key, tokens in expected(others).items():
        assert rig.outcome.tokens[key] == tokens
        assert rig.outcome.reasons[key] == "length"
    rig.check_empty()
    assert rig.loop._cache.swaps.used_blocks == 0


def serials_of_x(rig: Rig) -> set[int]:
    """Serials of x's live sequences."""
    slots = rig.sample().slots
    return set(slots.serial[slots.id_head == X.encode()].tolist())


@pytest.mark.parametrize("cause", CancelCause, ids=lambda cause: cause.word)
@pytest.mark.parametrize(("name", "point"), CASES)
def test_a_cancelled_request_gives_every_block_back_at_the_end_of_the_step(
    name: str, point: Point, cause: CancelCause
) -> None:
    staged, scene = Staged(SCENES[name]), SCENES[name]
    rig = staged.rig
    since_ns = staged.arrive(point)
    if staged.brings_x:
        rig.submit(request(X, 8, 4, arrived_ns=since_ns))
    serials = serials_of_x(rig)
    # What a step ends is gone by itself; what it was told to swap, copy or fork is done, and the cancel undoes it.
    assert 1 <= len(serials) <= scene.sequences
    rig.loop.cancel([X], cause, since_ns=since_ns)
    nothing_is_held_for(rig, serials)
    assert rig.count("cancellations_total", cause=cause.word) == len(serials)
    count, seconds = rig.observed("release", cause=cause.word)
    assert count == len(serials)
    assert seconds == pytest.approx(count * RELEASE_NS[point] / 1e9)
    assert set(rig.serials_of(Event.RELEASED)) >= serials
    the_others_go_on(rig, [new for new in scene.requests if new.request_id != X])
    assert {rig.outcome.reasons[key] for key in rig.outcome.reasons if key[0] == X} <= {"cancelled", "stop"}


@pytest.mark.parametrize(("name", "point"), DUE)
def test_a_timeout_ends_a_request_at_the_first_schedule_after_it_was_due(name: str, point: Point) -> None:
    scene = SCENES[name]
    rehearsal = Staged(scene)
    # A plan is made at the instant its step begins: what is due then is gone before.
    due_ns = rehearsal.arrive(point) + (A_LITTLE_NS if point is Point.PLANNED else 0)
    slots = rehearsal.rig.ledger.slots
    leader = int(np.flatnonzero(slots.id_head[:] == X.encode())[0])
    began_ns = int(slots.first_block_ns[leader]) or int(slots.arrived_ns[leader])
    waits = scene.state is RequestState.WAITING
    which = "queue_timeout_seconds" if waits else "run_timeout_seconds"
    staged = Staged(scene, **{which: max(A_LITTLE_NS, due_ns - began_ns) / 1e9})
    rig = staged.rig
    staged.arrive(point)
    serials = serials_of_x(rig)
    rig.step()
    nothing_is_held_for(rig, serials)
    if waits:
        assert rig.outcome.refused[X].reason == "queue_timeout"
        assert rig.observed("release", cause="timeout")[0] == 0
    else:
        count, seconds = rig.observed("release", cause="timeout")
        assert count == len(serials)
        assert seconds == pytest.approx(count * RELEASE_NS[point] / 1e9, abs=count * 2 * A_LITTLE_NS / 1e9)
        assert {rig.outcome.reasons[key] for key in rig.outcome.reasons if key[0] == X} <= {"run_timeout", "stop"}
    the_others_go_on(rig, [new for new in scene.requests if new.request_id != X])


@pytest.mark.parametrize(("name", "point"), CASES)
def test_a_reconnect_storm_leaves_the_last_request_with_its_text_and_nothing_of_the_others(
    name: str, point: Point
) -> None:
    scene, rounds = SCENES[name], 12
    staged = Staged(scene)
    rig = staged.rig
    since_ns = staged.arrive(point)
    (x,) = [new for new in scene.requests if new.request_id == X] or [request(X, 8, 4)]
    others, current, gone = [new for new in scene.requests if new is not x], X, 0
    if scene.drains:
        rig.loop.cancel([X], CancelCause.DISCONNECT, since_ns=since_ns)
        assert [answer.reason for answer in rig.submit(request("again", x.prompt, x.max_tokens))] == ["draining"]
        the_others_go_on(rig, others)
        return
    for number in range(rounds):
        # The client leaves and is back at once, at every age from "not looked at" to some tokens old.
        rig.loop.cancel([current], CancelCause.DISCONNECT, since_ns=since_ns)
        gone, current = gone + 1, f"{X}{number}"
        again = request(current, x.prompt, x.max_tokens, n=x.n, temperature=x.temperature, seed=x.seed)
        assert rig.submit(again) == []
        rig.step(number % 4)
        since_ns = rig.clock.now_ns()
        rig.check()
        host_is_sound(rig)
    assert rig.count("rejections_total", reason="queue_full") == 0
    the_others_go_on(rig, [*others, again])


def test_a_second_cancel_of_any_kind_changes_nothing() -> None:
    staged = Staged(SCENES["swapped"])
    staged.arrive(Point.BETWEEN)
    staged.rig.cancel(X, X, cause=CancelCause.API)
    before = staged.rig.sample().published_seq
    staged.rig.cancel(X, cause=CancelCause.DISCONNECT)
    assert staged.rig.sample().published_seq == before
    assert staged.rig.count("cancellations_total", cause="api") == 1
    assert staged.rig.count("cancellations_total", cause="disconnect") == 0


def test_a_hundred_clients_that_leave_at_once_are_one_publication() -> None:
    rig = Rig(capacity_blocks=60, max_num_batched_tokens=16, max_waiting=200)
    requests = [request(f"r{number}", 8, 20) for number in range(100)]
    rig.submit(*requests)
    rig.step(4)
    before = rig.sample().published_seq
    now_ns = rig.clock.now_ns()
    rig.loop.cancel_many([([new.request_id], CancelCause.DISCONNECT, now_ns) for new in (*requests, requests[0])])
    assert rig.sample().published_seq == before + 1
    assert rig.count("cancellations_total", cause="disconnect") == 100
    assert rig.observed("release", cause="disconnect") == (100, 0)
    rig.finish()
    rig.check_empty()


def test_a_step_that_hangs_delays_every_release_and_the_ledger_says_by_how_much() -> None:
    staged = Staged(SCENES["decoding"])
    since_ns = staged.arrive(Point.PLANNED)
    staged.rig.clock.advance(40 * STEP_NS)
    staged.rig.loop.cancel([X], CancelCause.DISCONNECT, since_ns=since_ns)
    assert staged.rig.observed("release", cause="disconnect")[1] == pytest.approx(41 * STEP_NS / 1e9)


def test_the_page_has_a_row_for_every_state_and_a_word_for_every_point() -> None:
    text = PAGE.read_text()
    rows = set(re.findall(r"^\| ([a-z][^|]*?) \|", text, re.MULTILINE))
    assert set(SCENES) <= rows
    assert {point.value for point in Point} <= rows
