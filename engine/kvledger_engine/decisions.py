"""The decision table: every refusal and every ending, its HTTP status, whether and when to retry, and what to do. Pure.

The one place where that is said. The code a client sees is the reason's own word; facts with numbers are added by who
finds them, before the advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kvledger.words import FinishReason, RejectionReason

OK = 200
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED = 400, 401, 403, 404, 405
TOO_LARGE, TOO_MANY = 413, 429
UNAVAILABLE, TIMED_OUT = 503, 504


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one reason means for the client. `fact` is what happened, where it is always the same.

    `retryable`: the same request can succeed later, here or elsewhere; not before `retry_after_seconds`.
    """

    status: int
    advice: str
    fact: str = ""
    retryable: bool = False
    retry_after_seconds: int = 1

    @property
    def message(self) -> str:
        """Fact and advice."""
        return f"{self.fact}; {self.advice}" if self.fact else self.advice


REFUSALS: Mapping[RejectionReason, Decision] = MappingProxyType(
    {
        RejectionReason.BAD_REQUEST: Decision(status=BAD_REQUEST, advice="mend what is named"),
        RejectionReason.CONTEXT_TOO_LONG: Decision(
            status=BAD_REQUEST, advice="shorten the prompt or ask for fewer tokens"
        ),
        RejectionReason.EXCEEDS_POOL: Decision(
            status=BAD_REQUEST, advice="shorten it, ask for fewer tokens or sequences, or use a larger replica"
        ),
        RejectionReason.EXCEEDS_QUOTA: Decision(
            status=FORBIDDEN, advice="shorten it, ask for fewer tokens or sequences, or ask for a larger quota"
        ),
        RejectionReason.TENANT_QUOTA: Decision(
            status=TOO_MANY, advice="try again once some have begun", retryable=True
        ),
        RejectionReason.QUEUE_FULL: Decision(
            status=TOO_MANY, advice="try again later, with growing pauses", retryable=True
        ),
        RejectionReason.QUEUE_TIMEOUT: Decision(
            status=UNAVAILABLE, advice="try again later, or elsewhere", retryable=True
        ),
        RejectionReason.DRAINING: Decision(
            status=UNAVAILABLE,
            fact="the engine is about to end",
            advice="send the request to another replica",
            retryable=True,
            retry_after_seconds=5,
        ),
    }
)
"""Before any block is held."""

NO_SUCH_MODEL, NO_KEY, ANOTHERS_TENANT, LARGE_BODY = (
    Decision(status=NOT_FOUND, advice="ask /v1/models what is served"),
    Decision(status=UNAUTHORIZED, advice="send a known API key: Authorization: Bearer …"),
    Decision(status=FORBIDDEN, advice="leave X-Tenant out", fact="the API key is that of another tenant"),
    Decision(status=TOO_LARGE, advice="send less"),
)
"""Refusals as `bad_request` that have a status of their own; no core is needed to find them."""

ENDINGS: Mapping[FinishReason, Decision] = MappingProxyType(
    {
        FinishReason.STOP: Decision(status=OK, advice=""),
        FinishReason.LENGTH: Decision(status=OK, advice=""),
        FinishReason.CANCELLED: Decision(
            status=UNAVAILABLE,
            fact="the engine was told to cancel the request",
            advice="send it again",
            retryable=True,
        ),
        FinishReason.RUN_TIMEOUT: Decision(
            status=TIMED_OUT,
            fact="the request ran longer than the engine allows",
            advice="ask for fewer tokens",
        ),
        FinishReason.POOL_EXHAUSTED: Decision(
            status=UNAVAILABLE,
            fact="the KV cache had no block left for this request",
            advice="send it again later",
            retryable=True,
        ),
        FinishReason.OUT_OF_MEMORY: Decision(
            status=UNAVAILABLE,
            fact="the engine ran out of memory",
            advice="send the request again later",
            retryable=True,
        ),
        FinishReason.ENGINE_ERROR: Decision(
            status=UNAVAILABLE,
            fact="the engine failed",
            advice="send the request again once /health answers 200",
            retryable=True,
            retry_after_seconds=5,
        ),
    }
)
"""Of requests that were accepted; every block is back when the client is told."""

ABORTED = Decision(
    status=UNAVAILABLE, fact="the request was aborted through /v1/abort", advice="somebody wanted it gone"
)
"""An ending as `cancelled` of a request that was given up by its id."""
