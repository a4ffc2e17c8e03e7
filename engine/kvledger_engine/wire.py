"""Answers that are not a completion: the status, code and advice of every refusal and of every failed ending.

Pure tables and their JSON. Decides nothing: reasons come from the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kvledger.words import FinishReason, RejectionReason
from kvledger_engine.messages import Refused

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, METHOD_NOT_ALLOWED = 400, 401, 403, 404, 405
TOO_LARGE, TOO_MANY = 413, 429
UNAVAILABLE, TIMED_OUT = 503, 504

STATUS: Mapping[str, int] = {
    RejectionReason.CONTEXT_TOO_LONG.word: BAD_REQUEST,
    RejectionReason.EXCEEDS_POOL.word: BAD_REQUEST,
    RejectionReason.EXCEEDS_QUOTA.word: FORBIDDEN,
    RejectionReason.QUEUE_FULL.word: TOO_MANY,
    RejectionReason.TENANT_QUOTA.word: TOO_MANY,
    RejectionReason.QUEUE_TIMEOUT.word: UNAVAILABLE,
    RejectionReason.DRAINING.word: UNAVAILABLE,
    RejectionReason.BAD_REQUEST.word: BAD_REQUEST,
    FinishReason.CANCELLED.word: UNAVAILABLE,
    FinishReason.RUN_TIMEOUT.word: TIMED_OUT,
    FinishReason.POOL_EXHAUSTED.word: UNAVAILABLE,
    FinishReason.OUT_OF_MEMORY.word: UNAVAILABLE,
    FinishReason.ENGINE_ERROR.word: UNAVAILABLE,
}
"""HTTP status of every refusal and of every ending that is not a completion."""

_ENDINGS: Mapping[str, tuple[str, bool]] = {
    FinishReason.CANCELLED.word: ("the engine was told to cancel the request; send it again", True),
    FinishReason.RUN_TIMEOUT.word: ("the request ran longer than the engine allows; ask for fewer tokens", False),
    FinishReason.POOL_EXHAUSTED.word: ("the KV cache had no block left for this request; send it again later", True),
    FinishReason.OUT_OF_MEMORY.word: ("the engine ran out of memory; send the request again later", True),
    FinishReason.ENGINE_ERROR.word: ("the engine failed; send the request again once /health answers 200", True),
}
_COMPLETE = (FinishReason.STOP.word, FinishReason.LENGTH.word)
_RETRY_AFTER_SECONDS = {RejectionReason.DRAINING.word: 5, FinishReason.ENGINE_ERROR.word: 5}
_TYPES = {
    BAD_REQUEST: "invalid_request_error",
    UNAUTHORIZED: "authentication_error",
    FORBIDDEN: "permission_error",
    NOT_FOUND: "not_found_error",
    METHOD_NOT_ALLOWED: "invalid_request_error",
    TOO_LARGE: "invalid_request_error",
    TOO_MANY: "rate_limit_error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """An answer in OpenAI's error shape, with `retryable` added: whether the same request can succeed later."""

    status: int
    code: str
    message: str
    param: str | None = None
    retryable: bool = False

    @property
    def body(self) -> bytes:
        """The JSON document."""
        kind = _TYPES.get(self.status, "server_error")
        shown = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": shown | {"retryable": self.retryable}})

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in seconds, where the same request can succeed later; OpenAI's clients obey X-Should-Retry."""
        if not self.retryable:
            return {"X-Should-Retry": "false"}
        return {"X-Should-Retry": "true", "Retry-After": str(_RETRY_AFTER_SECONDS.get(self.code, 1))}


def refusal(refused: Refused) -> ApiError:
    """The answer to a request the core did not take."""
    return ApiError(
        status=STATUS[refused.reason], code=refused.reason, message=refused.advice, retryable=refused.retryable
    )


def failed_ending(reason: str) -> ApiError | None:
    """The answer to a request that ended for `reason` (a `FinishReason` word); None where that is a completion."""
    if reason in _COMPLETE:
        return None
    message, retryable = _ENDINGS[reason]
    return ApiError(status=STATUS[reason], code=reason, message=message, retryable=retryable)


ENGINE_ERROR = ApiError(
    status=UNAVAILABLE,
    code=FinishReason.ENGINE_ERROR.word,
    message=_ENDINGS[FinishReason.ENGINE_ERROR.word][0],
    retryable=True,
)
"""The answer of a server whose core is gone."""
DRAINING = ApiError(
    status=UNAVAILABLE,
    code=RejectionReason.DRAINING.word,
    message="the engine is about to end; send the request to another one",
    retryable=True,
)
"""The answer of a server that is about to end."""
ABORTED = ApiError(
    status=UNAVAILABLE,
    code=FinishReason.CANCELLED.word,
    message="the request was aborted through /v1/abort",
)
"""The answer to a request that was aborted by its id."""
