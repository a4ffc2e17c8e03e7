"""Rulings: what is not known decides nothing, more of the same changes nothing, and a change has to last."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.reasons import ROWS
from kvledger.words import Action, Reason, Verdict
from kvledger_agent.verdict.ruling import rule
from kvledger_agent.verdict.rulings import Ruling
from kvledger_agent.verdict.signals import Signals, Wait
from kvledger_agent.verdict.steady import AT_ONCE, HOLD_PART, Steady
from kvledger_agent.verdict.thresholds import DEFAULT

NS = 1_000_000_000
NOTHING: dict[str, Any] = {f.name: None for f in fields(Signals)} | {
    "span_seconds": 60.0, "idle": False, "holders_known": True
}  # fmt: skip
NO_WAIT = Wait(pool=0.0, batch_slots=0.0, token_budget=0.0, quota=0.0, step=0.0, elsewhere=0.0)
SHARES = st.floats(0, 1)
CALM = Signals(
    **NOTHING
    | {
        "wait": NO_WAIT,
        "request_seconds_per_second": 10.0,
        "used": 0.5,
        "room": 0.5,
        "running": 5.0,
        "waiting": 0.0,
        "arrivals": 100.0,
        "refused": {"queue_full": 0.0},
        "sender": "acme",
        "sender_share": 1.0,
        "senders": 1,
        "recomputed_tokens": 0.0,
        "new_tokens": 2000.0,
        "preemptions": 0.0,
        "model": 0.5,
        "slots_used": 0.1,
        "tokens_used": 0.1,
        "allocating": 0.01,
        "long_share": 0.0,
        "long_requests": 0.0,
        "shared_share": 0.0,
        "pinned_share": 0.0,
        "tenant": "acme",
        "tenant_share": 1.0,
        "tenants": 1,
    }
)


def waiting(**shares: float) -> Signals:
    return replace(CALM, wait=replace(NO_WAIT, **shares), room=0.5)


def test_of_an_engine_of_which_nothing_is_known_nothing_is_said_and_what_is_missing_is_named() -> None:
    ruling = rule(Signals(**NOTHING))

    assert (ruling.verdict, ruling.reason) == (Verdict.UNKNOWN, Reason.MISSING_SIGNALS)
    assert ruling.missing


@pytest.mark.parametrize(
    "lost", ["model", "room", "refused", "arrivals", "allocating", "recomputed_tokens", "tenant_share"]
)
def test_a_signal_that_is_lost_turns_no_healthy_engine_into_a_bound_one(lost: str) -> None:
    assert rule(CALM).verdict is Verdict.HEALTHY

    unknown: dict[str, Any] = {lost: None}
    assert rule(replace(CALM, **unknown)).verdict in (Verdict.HEALTHY, Verdict.UNKNOWN)


@given(st.data())
def test_what_is_unknown_is_never_the_evidence(data: st.DataObject) -> None:
    """Whatever signals are lost from whatever engine: a bound verdict rests on signals that are there."""
    full = replace(
        CALM,
        wait=Wait(**{f.name: data.draw(SHARES) / 6 for f in fields(Wait)}),
        room=data.draw(SHARES), used=data.draw(SHARES), long_share=data.draw(SHARES), tenant_share=data.draw(SHARES),
        tenants=data.draw(st.integers(1, 4)), shared_share=data.draw(SHARES), pinned_share=data.draw(SHARES),
        held_up=data.draw(SHARES), model=data.draw(SHARES), slots_used=data.draw(SHARES),
        sender_share=data.draw(SHARES), senders=data.draw(st.integers(1, 4)),
        refused={"queue_full": 100 * data.draw(SHARES)}, recomputed_tokens=2000 * data.draw(SHARES), preemptions=5.0,
    )  # fmt: skip
    optional = ["model", "refused", "arrivals", "sender_share", "allocating", "recomputed_tokens", "tenant_share",
                "long_share", "shared_share", "pinned_share", "held_up", "room", "used", "slots_used"]  # fmt: skip
    lost = data.draw(st.lists(st.sampled_from(optional), unique=True))
    needs = {
        Reason.OVERLOAD: {"refused", "arrivals"},
        Reason.TENANT_OVERLOAD: {"refused", "arrivals", "sender_share"},
        Reason.PREEMPTION_THRASH: {"recomputed_tokens"},
        Reason.ONE_TENANT: {"tenant_share"}, Reason.SHARED_PREFIXES: {"shared_share"},
        Reason.RETAINED_PREFIXES: {"pinned_share"}, Reason.HEAD_OF_LINE: {"held_up"},
        Reason.COMPUTE: {"model", "room"}, Reason.FULL_USE: {"room"}, Reason.SLOW_ALLOCATION: {"allocating", "room"},
    }  # fmt: skip

    unknown: dict[str, Any] = dict.fromkeys(lost)
    ruling = rule(replace(full, **unknown))

    assert not needs.get(ruling.reason, set()) & set(lost), ruling
    assert ruling.evidence
    assert (ruling.reason is Reason.MISSING_SIGNALS) <= bool(ruling.missing)


@pytest.mark.parametrize(
    ("cause", "reason"),
    [("batch_slots", Reason.BATCH_SLOTS), ("token_budget", Reason.TOKEN_BUDGET), ("quota", Reason.QUOTA)],
)
@given(SHARES, SHARES)
def test_the_more_of_request_time_is_waiting_for_a_limit_the_surer_it_is_named(
    cause: str, reason: Reason, less: float, more: float
) -> None:
    less, more = sorted((less, more))

    if rule(waiting(**{cause: less})).reason is reason:
        assert rule(waiting(**{cause: more})).reason is reason
    assert (rule(waiting(**{cause: more})).reason is reason) == (more >= DEFAULT.waits)


@given(st.floats(0, 100), st.floats(0, 100), SHARES)
def test_more_refusals_never_make_an_overload_less_of_one_whoever_holds_the_pool(
    less: float, more: float, tenant_share: float
) -> None:
    less, more = sorted((less, more))
    short = replace(waiting(pool=0.6), room=0.02, tenants=3, tenant_share=tenant_share)

    before, after = (rule(replace(short, refused={"queue_full": refused})).reason for refused in (less, more))

    assert before is not Reason.OVERLOAD or after is Reason.OVERLOAD
    assert (after is Reason.OVERLOAD) == (more >= 50)


@given(SHARES, SHARES, st.integers(1, 9))
def test_the_more_of_the_arrivals_are_one_tenants_the_surer_it_is_to_be_throttled_but_not_where_it_is_alone(
    less: float, more: float, senders: int
) -> None:
    less, more = sorted((less, more))
    short = replace(waiting(pool=0.6), room=0.02, refused={"queue_full": 80.0}, senders=senders, sender="bulk")

    before, after = (rule(replace(short, sender_share=share)) for share in (less, more))

    one = senders > 1 and more >= DEFAULT.one_tenant
    assert (after.reason, after.action) == (
        (Reason.TENANT_OVERLOAD, Action.THROTTLE) if one else (Reason.OVERLOAD, Action.SCALE_OUT)
    )
    assert before.reason is not Reason.TENANT_OVERLOAD or after.reason is Reason.TENANT_OVERLOAD
    assert ("'bulk'" in after.evidence) == (senders > 1)


def test_who_sends_is_unknown_where_arrivals_are_not_told_by_tenant() -> None:
    short = replace(waiting(pool=0.6), room=0.02, refused={"queue_full": 80.0}, sender_share=None, senders=None)

    assert rule(short).reason is Reason.OVERLOAD


PAGE = replace(CALM, wait=None, model=None, room=0.5, used=0.5, waiting=8.0, running=12.0, holders_known=False)
"""Of a page: nobody says what is waited for, or how long steps take."""


@given(room=SHARES, waiting=st.floats(0, 50), running=st.floats(0, 50), preemptions=st.sampled_from([None, 0.0, 3.0]))
def test_a_page_says_pool_bound_only_where_the_pool_is_short_and_somebody_waits(
    room: float, waiting: float, running: float, preemptions: float | None
) -> None:
    seen = replace(PAGE, room=room, used=1 - room, waiting=waiting, running=running, preemptions=preemptions)

    ruling = rule(seen)

    bound = ruling.verdict is Verdict.POOL_BOUND
    waits = waiting > 0 and waiting >= DEFAULT.waits * (waiting + running)
    short = room < DEFAULT.page_full or (room < DEFAULT.room and bool(preemptions))
    assert bound == (waits and short)
    assert ruling.verdict in (Verdict.POOL_BOUND, Verdict.HEALTHY, Verdict.UNKNOWN)
    if bound:
        assert ruling.evidence.startswith("certain: " if preemptions else "likely: ")
        assert {"wait causes", "blocks by request", "blocks by tenant"} == set(ruling.missing)
    assert not waits or ruling.missing, "what a page cannot tell is named"


def test_a_page_whose_pool_has_room_says_neither_scheduler_nor_compute_and_names_what_would_tell() -> None:
    assert rule(PAGE).missing == ("wait causes",)
    assert rule(replace(PAGE, waiting=0.0)).missing == ("step times",)
    assert rule(replace(PAGE, room=None, used=None)).missing == ("blocks free or kept for reuse", "wait causes")


def test_requests_that_are_deferred_do_not_wait_for_the_pool_however_full_it_is() -> None:
    full = replace(PAGE, room=0.01, used=0.99, preemptions=2.0)

    assert rule(replace(full, deferred=1.0)).verdict is Verdict.POOL_BOUND
    assert rule(replace(full, deferred=7.0)).reason is Reason.MISSING_SIGNALS


def test_refusals_on_a_page_are_an_overload_only_where_the_pool_is_known_to_be_what_fills_the_queue() -> None:
    refusing = replace(PAGE, refused={"queue_full": 80.0}, sender_share=None, senders=None)

    assert rule(replace(refusing, room=0.02)).reason is Reason.OVERLOAD
    for room in (0.5, None):
        ruling = rule(replace(refusing, room=room))
        assert (ruling.reason, ruling.missing) == (Reason.MISSING_SIGNALS, ("wait causes",))
        assert "80 of 100 arrivals (80 %) were refused at the door" in ruling.evidence


def test_refusals_by_a_quota_are_no_overload_and_a_full_queue_for_want_of_slots_is_none() -> None:
    refused = replace(CALM, refused={"tenant_quota": 80.0, "queue_full": 5.0})
    slots = replace(waiting(batch_slots=0.5), refused={"queue_full": 80.0})

    assert rule(refused).reason is Reason.QUOTA
    assert rule(slots).reason is Reason.BATCH_SLOTS


def test_a_limit_at_the_door_before_an_engine_with_room_that_keeps_nobody_waiting_is_no_overload() -> None:
    capped = replace(waiting(pool=0.0), refused={"queue_full": 80.0})

    assert rule(capped).reason is Reason.QUOTA
    assert "by a limit at the door" in rule(capped).evidence
    assert rule(replace(capped, model=0.9, slots_used=0.9)).reason is Reason.COMPUTE


def test_an_engine_without_work_says_how_much_room_it_has() -> None:
    ruling = rule(replace(waiting(), idle=True, running=0.0, waiting=0.0, room=1.0))

    assert (ruling.reason, ruling.evidence) == (
        Reason.LIGHT,
        "no work is there; 100 % of the pool is free or cached",
    )


def told(reason: Reason) -> Ruling:
    return Ruling(reason, reason.word)


CALM_REASONS = st.sampled_from([reason for reason in Reason if reason not in AT_ONCE])


@given(CALM_REASONS, CALM_REASONS, st.integers(1, 120))
def test_another_reason_is_told_once_it_has_held_for_a_part_of_the_window(
    first: Reason, second: Reason, window: int
) -> None:
    steady, hold_ns = Steady(window), round(HOLD_PART * window * NS)
    steady.update(told(first), 0)

    assert steady.update(told(second), NS).reason is first or first is second
    assert steady.update(told(second), NS + hold_ns - 1).reason is first or first is second
    assert steady.update(told(second), NS + hold_ns).reason is second


@given(CALM_REASONS, CALM_REASONS)
def test_a_reason_that_comes_and_goes_is_not_told(first: Reason, second: Reason) -> None:
    steady = Steady(60)
    steady.update(told(first), 0)

    for second_of in range(1, 60):
        found = steady.update(told(second if second_of % 5 else first), second_of * NS)
        assert found.reason is first


@given(CALM_REASONS, st.sampled_from(sorted(AT_ONCE)))
def test_what_is_grave_is_told_at_once_and_over_at_once(calm: Reason, grave: Reason) -> None:
    steady = Steady(60)
    steady.update(told(calm), 0)

    assert steady.update(told(grave), 1).reason is grave
    assert steady.update(told(calm), 2).reason is calm


def test_every_reason_is_in_the_table_once_with_a_verdict_and_an_action() -> None:
    assert [row.reason for row in ROWS] == list(Reason)
    assert {row.verdict for row in ROWS} == set(Verdict)
    assert all(row.says and row.to_do for row in ROWS)
    assert len({row.to_do for row in ROWS}) == len(ROWS)
