"""What can go wrong with a scraped endpoint, as types; each carries the word under which the API lists the source."""

from __future__ import annotations

from kvledger_agent.errors import AgentError


class ScrapeFailed(AgentError):
    """Base: this endpoint gave no reading this time. `word` is its status in the API."""

    word = "scrape_failed"


class Unreachable(ScrapeFailed):
    """Nobody answers at the address."""

    word = "unreachable"


class TimedOut(ScrapeFailed):
    """The answer was not there in time."""

    word = "timed_out"


class TooLarge(ScrapeFailed):
    """The answer is larger than a page may be."""

    word = "too_large"


class BadStatus(ScrapeFailed):
    """The endpoint answered, but not with 200. `status` is the HTTP status."""

    word = "bad_status"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class NotMetrics(ScrapeFailed):
    """The answer is no metrics page: HTML, JSON, or nothing at all."""

    word = "not_metrics"


class UnknownEngine(ScrapeFailed):
    """A metrics page, but of no engine that is known here."""

    word = "unknown_engine"
