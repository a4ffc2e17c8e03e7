"""A scenario: an engine's flags, its load, and what the agent has to say of it. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.words import Reason
from tests.verdict.load import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One scenario. `neighbours` are what it must not be taken for; `odd` names an engine of `tests.verdict.odd`;
    `deed` is what is done to the engine: `stop`, `kill`, `drain` or `pause`. `tenants` is a tenants file.
    """

    name: str
    reason: Reason
    says: str
    neighbours: tuple[Reason, ...]
    flags: str = ""
    streams: tuple[Stream, ...] = ()
    tenants: str = ""
    odd: str = ""
    deed: str = ""
