"""How full a server's pool is and who is there, by an agent or by the server's own page. Reads; judges nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kvledger.words import RequestState
from kvledger_agent.client import AgentClient, ClientError
from kvledger_agent.drill.errors import DrillImpossible
from kvledger_agent.scrape.endpoint import parse_endpoint
from kvledger_agent.scrape.errors import BadStatus, NotMetrics, ScrapeFailed, UnknownEngine
from kvledger_agent.scrape.reading import EngineReading
from kvledger_agent.scrape.scrape_source import Scraper
from kvledger_agent.sums import sum_if_known

POOL, REQUESTS = "active blocks of the pool", "running and waiting requests"
NO_PAGE = (404, 405, 410)
"""Statuses of a path that is not there."""
READ_ERRORS = (ClientError, ScrapeFailed)
"""What a read may raise; the next one may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One reading. `blocks` are active ones; None where the source does not tell, as for the others.

    `stamp` orders readings: one that is larger was taken later by the source itself. `findings` are the kinds that
    are open.
    """

    blocks: float | None
    running: int | None
    waiting: int | None
    stamp: int
    findings: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The signals that a drill needs and this source does not have."""
        lacking = {POOL: self.blocks is None, REQUESTS: self.running is None or self.waiting is None}
        return tuple(name for name, absent in lacking.items() if absent)

    @property
    def present(self) -> int:
        """Requests that run or wait, as far as that is known."""
        return (self.running or 0) + (self.waiting or 0)

    def is_back_to(self, blocks: float) -> bool:
        """Whether nobody is there and no more than `blocks` are active; never where a signal is missing."""
        return self.blocks is not None and not self.missing and not self.present and self.blocks <= blocks


class Levels(Protocol):
    """A source of readings."""

    source: str
    """Where they come from, for people."""
    moves_with_steps: bool
    """Whether an engine that takes no step shows its last level for ever."""

    def read(self) -> Level:
        """One reading. Raises one of `READ_ERRORS`, or `DrillImpossible` where no later reading could succeed."""


class AgentLevels:
    """The level of one engine, as its agent tells. Without a name, of the only one that the agent watches."""

    moves_with_steps = False

    def __init__(self, url: str, engine: str | None) -> None:
        self._client, self._engine = AgentClient(url), engine
        self.source = f"the agent at {url}"

    def read(self) -> Level:
        """The engine's snapshot. Raises `DrillImpossible` where it is not clear which engine is meant."""
        if self._engine is None:
            self._engine = self._only_engine()
        document = self._client.snapshot(self._engine)
        pool, requests = document.get("pool") or {}, document.get("requests") or {}
        return Level(
            blocks=pool.get("active_blocks"),
            running=_in_states(requests.get("live"), _HOLDING),
            waiting=_in_states(requests.get("live"), (RequestState.WAITING,)),
            stamp=int((document.get("clock") or {}).get("now_ns") or 0),
            findings=tuple(sorted({finding["kind"] for finding in document.get("findings") or ()})),
        )

    def _only_engine(self) -> str:
        names = [str(line["id"]) for line in self._client.engines()["engines"]]
        if len(names) != 1:
            found = ", ".join(names) or "none"
            raise DrillImpossible(f"{self.source} watches {found}: name the server's engine with --engine")
        return names[0]


_HOLDING = tuple(state for state in RequestState if state not in (RequestState.WAITING, RequestState.FINISHED))


class PageLevels:
    """The level of a server as its own metrics page tells, all ranks together."""

    moves_with_steps = True

    def __init__(self, url: str) -> None:
        self._scraper = Scraper(parse_endpoint(url))
        self.source = f"the page of {url}"

    def read(self) -> Level:
        """One scrape. Raises `DrillImpossible` where the server has no page, and so will not have one."""
        try:
            readings = self._scraper.scrape().readings
        except (BadStatus, NotMetrics, UnknownEngine) as error:
            if isinstance(error, BadStatus) and error.status not in NO_PAGE:
                raise
            raise DrillImpossible(f"{error}; name the agent that watches it with --agent") from error
        return Level(
            blocks=sum_if_known(_active(reading) for reading in readings),
            running=sum_if_known(reading.running for reading in readings),
            waiting=sum_if_known(reading.waiting for reading in readings),
            stamp=min(reading.monotonic_ns for reading in readings),
        )


def _active(reading: EngineReading) -> float | None:
    """Active blocks; None where what is kept for reuse counts as used, since it does not come back."""
    if reading.active_blocks is not None or reading.usage_includes_evictable:
        return reading.active_blocks
    if reading.usage_ratio is None or reading.capacity_blocks is None:
        return None
    return round(reading.usage_ratio * reading.capacity_blocks)


def _in_states(rows: Iterable[Mapping[str, Any]] | None, states: tuple[RequestState, ...]) -> int | None:
    if rows is None:
        return None
    words = [state.word for state in states]
    return int(sum(row["value"] or 0 for row in rows if row["state"] in words))
