"""A request as it came: what the mirror knows of it before anything else is said."""

from __future__ import annotations

from typing import NamedTuple


class Arrival(NamedTuple):
    """In the order of `rare.Rare`'s `arrived`."""

    request_id: str
    tenant: str
    prompt_tokens: int
    max_tokens: int
    arrived_ns: int
