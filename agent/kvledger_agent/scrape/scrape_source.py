"""One scraped endpoint: fetches, detects, reads and watches it. Keeps the last good readings for a while, marked.

Used by one thread, its own or the caller's; `ScrapeSources` shares what it has seen.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvledger.clock import NS_PER_SECOND
from kvledger_agent.finding import Finding
from kvledger_agent.fleet import INTERNAL_ERROR, SourceHealth
from kvledger_agent.observation import Observation
from kvledger_agent.scrape.detect import WANTED, Detected, detect
from kvledger_agent.scrape.endpoint import Endpoint
from kvledger_agent.scrape.errors import BadStatus, NotMetrics, ScrapeFailed, UnknownEngine
from kvledger_agent.scrape.extras import page_of_document
from kvledger_agent.scrape.fetch import MAX_EXTRA_BYTES, TIMEOUT_SECONDS, Answer, fetch, fetch_page
from kvledger_agent.scrape.judgement import scraped_verdict
from kvledger_agent.scrape.observe import observation_of
from kvledger_agent.scrape.page import Page, parse_page
from kvledger_agent.scrape.profile import EngineProfile
from kvledger_agent.scrape.reading import EngineReading, read
from kvledger_agent.scrape.symptoms import SymptomTracker
from kvledger_agent.verdict.judge import WINDOW_SECONDS, Judge

logger = logging.getLogger(__name__)

LAST_GOOD_SECONDS = 30.0
"""How long a page is shown after the endpoint has stopped to answer; longer, and it would pass for the present."""
RETRY_DOCUMENT_SECONDS = 60.0
FORGOTTEN_SECONDS = 600.0
"""How long a rank that is no more on the page may come back and find what was known of it."""
RANK_GONE = "rank_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraped:
    """One endpoint's page, whose it is, and what it said."""

    path: str
    detected: Detected
    page: Page
    documents: dict[str, Any]
    readings: tuple[EngineReading, ...]


class Scraper:
    """Fetches and reads one endpoint. Remembers the path that worked, and documents that did not."""

    def __init__(self, endpoint: Endpoint, *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.endpoint, self._timeout_seconds = endpoint, timeout_seconds
        self._path: str | None = None
        self._not_before: dict[str, float] = {}

    def scrape(self) -> Scraped:
        """One scrape. Raises a `ScrapeFailed` subclass."""
        paths = (self._path,) if self._path else self.endpoint.paths
        first: ScrapeFailed | None = None
        for path in paths:
            try:
                answer = fetch_page(self.endpoint.base, path, timeout_seconds=self._timeout_seconds)
                scraped = self._read(path, answer)
            except (BadStatus, NotMetrics, UnknownEngine) as error:
                first = first or error
                continue
            self._path = path
            return scraped
        self._path = None
        raise first or NotMetrics(f"{self.endpoint.base}: no path to ask for")

    def _read(self, path: str, answer: Answer) -> Scraped:
        monotonic_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        where = f"{self.endpoint.base}{path}"
        page = page_of_document(_json(answer.body)) if answer.looks_like_json else parse_page(answer.body, WANTED)
        if answer.looks_like_json and not page.families:
            raise NotMetrics(f"{where} answers with JSON: it is no metrics page")
        detected = detect(page, seen=() if page.families else _names(answer.body))
        documents = self._documents(detected, path)
        readings = read(
            detected.profile,
            detected.version_range,
            page,
            documents,
            monotonic_ns=monotonic_ns,
            wall_ns=wall_ns,
        )
        if not readings:
            raise NotMetrics(f"{where} has families of {detected.profile.title}, but no series that can be read")
        return Scraped(path=path, detected=detected, page=page, documents=documents, readings=readings)

    def _documents(self, detected: Detected, path: str) -> dict[str, Any]:
        """The further documents that could be had; one that failed is left alone for a while."""
        found = {}
        for extra in detected.profile.documents:
            if extra == path or time.monotonic() < self._not_before.get(extra, 0.0):
                continue
            try:
                answer = fetch(
                    self.endpoint.base, extra, timeout_seconds=self._timeout_seconds, max_bytes=MAX_EXTRA_BYTES
                )
                found[extra] = _json(answer.body)
            except ScrapeFailed as error:
                self._not_before[extra] = time.monotonic() + RETRY_DOCUMENT_SECONDS
                logger.debug("endpoint=%s document=%s error=%s", self.endpoint.name, extra, error)
        return found


@dataclass(slots=True, kw_only=True)
class _Rank:
    """What was last seen of one rank, when, and in which scrape."""

    tracker: SymptomTracker
    judge: Judge
    profile: EngineProfile
    reading: EngineReading
    findings: tuple[Finding, ...] = ()
    seen_ns: int = 0
    seq: int = 0


class ScrapeSource:
    """One endpoint over time. `look` is one scrape; it never raises."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        verdict_window_seconds: float = WINDOW_SECONDS,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.endpoint, self._window_seconds = endpoint, verdict_window_seconds
        self._scraper = Scraper(endpoint, timeout_seconds=timeout_seconds)
        self._clock = clock or time.monotonic_ns
        self._ranks: dict[tuple[str, int], _Rank] = {}
        self._seq = 0
        self._good_ns: int | None = None
        self._error: str | None = None

    def look(self) -> tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]:
        """One scrape: the observations of all ranks, and how it went."""
        began_ns = self._clock()
        word, error = None, None
        try:
            scraped = self._scraper.scrape()
            self._good_ns = self._clock()
            self._take(scraped, self._good_ns)
        except ScrapeFailed as failed:
            word, error = failed.word, str(failed)
        except Exception as failed:
            # One engine's trouble must not end the sampling of the others.
            logger.exception("source=%s status=%s", self.endpoint.name, INTERNAL_ERROR)
            word, error = INTERNAL_ERROR, f"{type(failed).__name__}: {failed}"
        ended_ns = self._clock()
        if error is not None and error != self._error:
            logger.warning("source=%s status=%s error=%s", self.endpoint.name, word, error)
        self._error = error
        return self._seen(word, error, (ended_ns - began_ns) / NS_PER_SECOND, ended_ns)

    def _take(self, scraped: Scraped, now_ns: int) -> None:
        """Let every rank's tracker see its reading. A rank that the page has no more keeps what was known of it."""
        self._seq += 1
        profile = scraped.detected.profile
        self._ranks = {
            key: rank
            for key, rank in self._ranks.items()
            if rank.profile is profile and (now_ns - rank.seen_ns) / NS_PER_SECOND <= FORGOTTEN_SECONDS
        }
        for reading in scraped.readings:
            key = profile.engine, reading.rank
            if key not in self._ranks:
                self._ranks[key] = _Rank(
                    tracker=SymptomTracker(profile), judge=Judge(self._window_seconds), profile=profile, reading=reading
                )
            rank = self._ranks[key]
            rank.reading, rank.seen_ns, rank.seq = reading, now_ns, self._seq
            rank.findings = rank.tracker.update(reading)

    def _seen(
        self, word: str | None, error: str | None, duration: float, now_ns: int
    ) -> tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]:
        newest = self._seq if error is None else None
        ranks = [
            rank
            for _, rank in sorted(self._ranks.items())
            if rank.seq == newest or (now_ns - rank.seen_ns) / NS_PER_SECOND <= LAST_GOOD_SECONDS
        ]
        if not ranks:
            health = self._health(f"{self.endpoint.name}:0", word or INTERNAL_ERROR, error, duration, self._good_ns)
            return (), (health,)
        observations, healths = [], []
        for rank in ranks:
            gone, status = error, word
            if error is None and rank.seq != newest:
                gone, status = f"the page has no series of rank {rank.reading.rank}", RANK_GONE
            observation = self._observation(rank, gone)
            observations.append(observation)
            key = observation.identity.key
            healths.append(self._health(key, status or observation.liveness.status, gone, duration, rank.seen_ns))
        return tuple(observations), tuple(healths)

    def _health(
        self, key: str, status: str, error: str | None, duration: float, last_good_ns: int | None
    ) -> SourceHealth:
        return SourceHealth(
            source=key,
            path=self.endpoint.base,
            success=error is None,
            status=status,
            error=error,
            duration_seconds=duration,
            last_good_ns=last_good_ns,
            events_lost=None,
            reads_retried=None,
        )

    def _observation(self, rank: _Rank, gone: str | None) -> Observation:
        observation = observation_of(
            rank.reading,
            rank.findings,
            name=self.endpoint.name,
            profile=rank.profile,
            judged=rank.tracker.judged(rank.reading),
            seq=rank.seq,
            last_served=gone is not None,
        )
        return replace(observation, verdict=scraped_verdict(rank.judge, rank.profile, observation, gone=gone))


def _json(body: bytes) -> Any:
    """A JSON document; None for what is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _names(body: bytes) -> tuple[str, ...]:
    """The first few families on a page of an unknown engine."""
    return tuple(parse_page(body[: 1 << 16]).families)
