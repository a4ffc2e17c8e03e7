"""Answers that are not a completion, in OpenAI's error shape. Pure; what each reason means is `decisions`' to say."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from kvledger.words import FinishReason, RejectionReason
from kvledger_engine import decisions
from kvledger_engine.decisions import (
    BAD_REQUEST,
    ENDINGS,
    FORBIDDEN,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    OK,
    REFUSALS,
    TOO_LARGE,
    TOO_MANY,
    UNAUTHORIZED,
    Decision,
)
from kvledger_engine.messages import Refused

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
    retry_after_seconds: int = 1

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
        return {"X-Should-Retry": "true", "Retry-After": str(self.retry_after_seconds)}


def refusal(refused: Refused) -> ApiError:
    """The answer to a request the core did not take."""
    decided = REFUSALS[RejectionReason[refused.reason.upper()]]
    return ApiError(
        status=decided.status,
        code=refused.reason,
        message=refused.advice,
        retryable=refused.retryable,
        retry_after_seconds=decided.retry_after_seconds,
    )


def failed_ending(reason: str) -> ApiError | None:
    """The answer to a request that ended for `reason` (a `FinishReason` word); None where that is a completion."""
    decided = ENDINGS[FinishReason[reason.upper()]]
    return None if decided.status == OK else _said(reason, decided)


def _said(code: str, decided: Decision) -> ApiError:
    return ApiError(
        status=decided.status,
        code=code,
        message=decided.message,
        retryable=decided.retryable,
        retry_after_seconds=decided.retry_after_seconds,
    )


ENGINE_ERROR = _said(FinishReason.ENGINE_ERROR.word, ENDINGS[FinishReason.ENGINE_ERROR])
"""The answer of a server whose core is gone."""
DRAINING = _said(RejectionReason.DRAINING.word, REFUSALS[RejectionReason.DRAINING])
"""The answer of a server that is about to end."""
ABORTED = _said(FinishReason.CANCELLED.word, decisions.ABORTED)
"""The answer to a request that was aborted by its id."""
