"""The door: every reason to refuse, what the client is told, and that nothing was held or left behind."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvledger.words import Event, RejectionReason
from kvledger_engine.messages import NewRequest
from tests.engine.rig import Rig, request

BAD: dict[str, dict[str, Any]] = {
    "an empty prompt": {"prompt": []},
    "no token asked for": {"max_tokens": 0},
    "a negative number of tokens": {"max_tokens": -3},
    "no sequence": {"n": 0},
    "more sequences than can run": {"n": 9},
    "a negative temperature": {"temperature": -0.1},
    "a temperature that is no number": {"temperature": math.nan},
    "an infinite temperature": {"temperature": math.inf},
    "a token outside the vocabulary": {"prompt": [1, 256]},
    "a negative token": {"prompt": [-1]},
    "a token beyond 64 bits": {"prompt": [1 << 70]},
    "a stop token outside the vocabulary": {"stop_tokens": [256]},
    "an unknown class": {"request_class": "urgent"},
    "no tenant": {"tenant": ""},
    "a tenant name too long for the ledger": {"tenant": "é" * 33},
    "a tenant name that would be cut short": {"tenant": "a\0b"},
    "no request id": {"request_id": ""},
    "a request id too long": {"request_id": "x" * 257},
}


def refused(rig: Rig, new: NewRequest) -> tuple[str, bool]:
    """Submit what must be refused; (reason, retryable)."""
    before = rig.sample()
    reason_count = {word: rig.count("rejections_total", reason=word) for word in RejectionReason.words()}
    answer = rig.loop.submit(new)
    assert answer is not None
    assert answer.request_id == new.request_id
    assert answer.advice.endswith(".")
    assert rig.count("rejections_total", reason=answer.reason) == reason_count[answer.reason] + 1
    after = rig.check()
    assert len(after.slots) == len(before.slots)
    assert after.stats.gauge("free_blocks") == before.stats.gauge("free_blocks")
    events = rig.reader.events(0).records
    assert events["event"][-1] == Event.REJECTED
    assert RejectionReason(int(events["detail"][-1])).word == answer.reason
    return answer.reason, answer.retryable


@pytest.mark.parametrize("fault", BAD)
def test_a_request_that_makes_no_sense_is_refused(fault: str) -> None:
    fields: dict[str, Any] = {"request_id": "a", "prompt": [1, 2], "max_tokens": 2} | BAD[fault]
    assert refused(Rig(), NewRequest(**fields)) == ("bad_request", False)


def test_a_second_request_of_the_same_id_is_refused_while_the_first_lives() -> None:
    rig = Rig()
    assert rig.loop.submit(request("a")) is None
    assert refused(rig, request("a")) == ("bad_request", False)
    rig.finish()
    assert rig.loop.submit(request("a")) is None


def test_a_request_beyond_the_context_is_refused_and_one_that_fills_it_is_served() -> None:
    rig = Rig()
    assert refused(rig, request("a", 60, 5)) == ("context_too_long", False)
    assert rig.submit(request("b", 60, 4)) == []
    assert rig.finish().reasons == {("b", 0): "length"}


def test_a_request_that_could_not_run_in_an_empty_pool_is_refused() -> None:
    rig = Rig(capacity_blocks=8)
    assert refused(rig, request("a", 20, 13)) == ("exceeds_pool", False)
    assert rig.submit(request("b", 20, 12)) == []
    assert rig.finish().reasons == {("b", 0): "length"}


def test_sequences_of_one_request_share_the_full_blocks_of_their_prompt_in_that_sum() -> None:
    rig = Rig(capacity_blocks=10)
    # 4 shared blocks, then 2 for each sequence.
    assert rig.submit(request("fits", 17, 7, n=3, temperature=1.0)) == []
    rig.finish()
    assert refused(rig, request("a", 17, 8, n=3, temperature=1.0)) == ("exceeds_pool", False)
    assert refused(rig, request("b", 16, 9, n=3, temperature=1.0)) == ("exceeds_pool", False)


def test_a_full_queue_refuses_and_says_to_come_back() -> None:
    rig = Rig(max_num_seqs=1, max_waiting=2)
    assert rig.submit(request("a", 8, 20)) == []
    rig.step()
    assert rig.submit(request("b"), request("c")) == []
    assert refused(rig, request("d")) == ("queue_full", True)
    rig.cancel("b")
    assert rig.submit(request("e")) == []


def test_forks_that_find_no_slots_are_refused_as_queue_full() -> None:
    rig = Rig(max_num_seqs=4, max_waiting=4)
    assert rig.submit(request("a", n=4, temperature=1.0), request("b", n=3, temperature=1.0)) == []
    assert refused(rig, request("c", n=2, temperature=1.0)) == ("queue_full", True)
    assert rig.submit(request("d")) == []
    rig.finish()
    rig.check_empty()


def test_a_draining_engine_refuses_what_is_new_and_ends_what_it_has() -> None:
    rig = Rig()
    rig.submit(request("a"))
    rig.loop.drain()
    assert refused(rig, request("b")) == ("draining", True)
    assert rig.finish().reasons == {("a", 0): "length"}


def test_refusals_count_by_tenant_too() -> None:
    rig = Rig()
    rig.submit(request("a", 60, 60, tenant="t1"), request("b", 60, 60, tenant="t1"), request("c", 60, 60, tenant="t2"))
    by_tenant = rig.sample().stats.tenant_counter("tenant_rejections_total")
    assert by_tenant is not None
    assert {name: by_tenant[name] for name in ("t1", "t2")} == {"t1": 2, "t2": 1}


def test_a_name_that_is_none_does_not_take_a_tenant_column() -> None:
    rig = Rig()
    rig.submit(request("a", tenant="é" * 33), request("b", tenant="x\n"))
    sample = rig.sample()
    assert sample.tenants == ("other",)
    assert sample.stats.tenant_counter("tenant_rejections_total") == {"other": 2}


def test_one_bad_request_of_many_does_not_keep_the_others_out() -> None:
    rig = Rig()
    answers = rig.submit(request("a"), request("bad", []), request("b"))
    assert [answer.request_id for answer in answers] == ["bad"]
    assert rig.finish().reasons.keys() == {("a", 0), ("b", 0)}
