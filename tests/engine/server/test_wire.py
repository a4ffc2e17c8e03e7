"""Every refusal and every bad ending has a status, a code, a type and advice; retrying is advised where it can help."""

from __future__ import annotations

import json

import pytest

from kvledger.words import FinishReason, RejectionReason
from kvledger_engine import wire
from kvledger_engine.messages import Refused

EXPECTED = {
    "context_too_long": 400,
    "exceeds_pool": 400,
    "bad_request": 400,
    "exceeds_quota": 403,
    "queue_full": 429,
    "tenant_quota": 429,
    "queue_timeout": 503,
    "draining": 503,
}


@pytest.mark.parametrize("reason", RejectionReason.words())
@pytest.mark.parametrize("retryable", [False, True])
def test_a_refusal_keeps_the_cores_reason_advice_and_judgement(reason: str, retryable: bool) -> None:
    error = wire.refusal(Refused(request_id="a", reason=reason, advice="do this", retryable=retryable))
    shown = json.loads(error.body)["error"]
    assert (error.status, shown["code"], shown["message"], shown["retryable"]) == (
        EXPECTED[reason],
        reason,
        "do this",
        retryable,
    )
    assert shown["type"].endswith("_error")
    assert ("Retry-After" in error.headers) is retryable


@pytest.mark.parametrize("reason", FinishReason.words())
def test_an_ending_is_a_completion_or_an_error_with_advice(reason: str) -> None:
    error = wire.failed_ending(reason)
    if reason in ("stop", "length"):
        assert error is None
        return
    assert error is not None
    assert error.status >= 500
    assert error.code == reason
    assert error.message
