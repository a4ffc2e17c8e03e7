"""How a request ended, and what an endpoint's error means. Pure: reads bodies, performs no I/O."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from kvledger.words import FinishReason, RejectionReason

HTTP_OK = 200
HTTP_UNAVAILABLE = 503
_GOOD_ENDS = (FinishReason.STOP.word, FinishReason.LENGTH.word)
_BAD_ENDS = frozenset(FinishReason.words()) - frozenset(_GOOD_ENDS)
_REFUSALS = frozenset(RejectionReason.words())


class EndKind(StrEnum):
    """Every request that was sent ends as exactly one of these."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    CUT = "cut"


@dataclass(frozen=True, slots=True)
class Ending:
    """How one request ended.

    Attributes:
        kind: completed; rejected (the endpoint refused it); cancelled (this client dropped it, by its fate); timed_out
            (this client lost patience); failed (anything else that went wrong); cut (still open when the run ended).
        detail: the refusal's reason or what failed, as a word; None otherwise.
        status: HTTP status of a refusal; None if none was received.
    """

    kind: EndKind
    detail: str | None = None
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One request's end and its times; all of them count from the intended send time.

    Attributes:
        late_seconds: how late this generator sent it.
        first_token_seconds: time to first token; None if no token came.
        total_seconds: time to the end.
        token_gaps_seconds: time between successive tokens; tokens that came together have gaps of 0.
        prompt_tokens: as the endpoint counted them, else as planned.
        output_tokens: as the endpoint counted them, else as seen.
    """

    ending: Ending
    late_seconds: float
    first_token_seconds: float | None
    total_seconds: float
    token_gaps_seconds: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int


def failed(what: str) -> Ending:
    """An ending of kind failed; `what` is a word."""
    return Ending(EndKind.FAILED, what)


def ending_of_status(status: int, body: bytes) -> Ending:
    """What a response other than 200 means.

    4xx and 503 are refusals, unless the code is a finish reason such as `engine_error`: then the engine broke.
    """
    code = _code_of(body) or f"http_{status}"
    if code in _BAD_ENDS or not (400 <= status < 500 or status == HTTP_UNAVAILABLE):
        return Ending(EndKind.FAILED, code, status)
    return Ending(EndKind.REJECTED, code, status)


def ending_of_stream_error(error: object) -> Ending:
    """What an `error` object inside a stream means: a refusal after the headers were sent, or a failure."""
    code = _code(error) or "stream_error"
    return Ending(EndKind.REJECTED if code in _REFUSALS else EndKind.FAILED, code)


def ending_of_finish(finish_reason: str | None) -> Ending:
    """What the finish reason of a stream that is over means; None: the stream was cut short.

    A reason that is not one of ours (`content_filter`, `tool_calls`) is a completion.
    """
    if finish_reason is None:
        return failed("stream_cut")
    return failed(finish_reason) if finish_reason in _BAD_ENDS else Ending(EndKind.COMPLETED)


def _code_of(body: bytes) -> str | None:
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return _code(document.get("error")) if isinstance(document, dict) else None


def _code(error: object) -> str | None:
    """The error's code as a word; its type, where the code only repeats the status (vLLM, OpenAI proxies)."""
    if not isinstance(error, dict):
        return None
    for value in (error.get("code"), error.get("type")):
        if isinstance(value, str) and value and not value.isdigit():
            return re.sub(r"[^a-z0-9]+", "_", _snake(value))[:40].strip("_") or None
    return None


def _snake(value: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", value).lower()
