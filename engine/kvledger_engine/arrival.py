"""A request before its body is read: who sends it, under which id, and how it is refused for its form. Pure.

Owns the headers that are read.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from kvledger.words import RejectionReason, RequestClass
from kvledger_engine.decisions import ANOTHERS_TENANT, REFUSALS, Decision
from kvledger_engine.messages import NewRequest
from kvledger_engine.wire import ApiError

MAX_TENANT_BYTES = 64
DEFAULT_TENANT = "default"
TENANT_HEADER, CLASS_HEADER, REQUEST_ID_HEADER = "X-Tenant", "X-Class", "X-Request-Id"

_PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request before its body is read. `key_name` names the API key it came with; None = keys are not asked for."""

    headers: Mapping[str, str]
    request_id: str
    arrived_ns: int
    key_name: str | None = None


class BadBody(Exception):
    """A request that is refused for its form; `param` names the field or header, where one is to blame.

    `decided` is what it means where that is not a plain `bad_request`.
    """

    def __init__(self, message: str, *, param: str | None = None, decided: Decision | None = None) -> None:
        super().__init__(message)
        self.param, self.decided = param, decided or REFUSALS[RejectionReason.BAD_REQUEST]

    @property
    def error(self) -> ApiError:
        """The answer to the client."""
        code = RejectionReason.BAD_REQUEST.word
        return ApiError(status=self.decided.status, code=code, message=str(self), param=self.param)


def malformed(arrival: Arrival) -> NewRequest:
    """What stands for a body that cannot be read, so that the core refuses and counts it: an empty prompt."""
    try:
        tenant = tenant_of(arrival, None)
    except BadBody:
        tenant = arrival.key_name or DEFAULT_TENANT
    return NewRequest(request_id=arrival.request_id, prompt=[], max_tokens=1, tenant=tenant)


def request_id_of(headers: Mapping[str, str], prefix: str) -> str:
    """The prefix (`cmpl`, `chatcmpl`) and the client's X-Request-Id if that is plain, else something random."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return f"{prefix}-{given if _PLAIN_ID.fullmatch(given) else secrets.token_hex(12)}"


def distinct_id(request_id: str) -> str:
    """The id with something random behind it, for a client that uses one twice at once."""
    return f"{request_id}-{secrets.token_hex(4)}"


def tenant_of(arrival: Arrival, user: str | None) -> str:
    """The API key's name where keys are asked for, else X-Tenant, else the body's user. Raises `BadBody`."""
    header = arrival.headers.get(TENANT_HEADER)
    if arrival.key_name is not None:
        if header not in (None, arrival.key_name):
            raise BadBody(ANOTHERS_TENANT.message, param=TENANT_HEADER, decided=ANOTHERS_TENANT)
        return arrival.key_name
    tenant = header or user or DEFAULT_TENANT
    if len(tenant.encode(errors="replace")) > MAX_TENANT_BYTES or not tenant.isprintable():
        param = TENANT_HEADER if header else "user"
        raise BadBody(f"a tenant has at most {MAX_TENANT_BYTES} bytes, all printable", param=param)
    return tenant


def request_class_of(arrival: Arrival) -> str:
    """The X-Class header. Raises `BadBody`."""
    chosen = arrival.headers.get(CLASS_HEADER) or RequestClass.DEFAULT.word
    if chosen not in RequestClass.words():
        raise BadBody(f"{CLASS_HEADER} is one of {', '.join(RequestClass.words())}", param=CLASS_HEADER)
    return chosen
