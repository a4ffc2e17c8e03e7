"""All scraped endpoints: each in a thread of its own, so that a slow one delays nobody. Owns these threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from kvledger_agent.fleet import SourceHealth
from kvledger_agent.observation import Observation
from kvledger_agent.scrape.endpoint import Endpoint
from kvledger_agent.scrape.scrape_source import ScrapeSource
from kvledger_agent.verdict.judge import WINDOW_SECONDS

Seen = tuple[tuple[Observation, ...], tuple[SourceHealth, ...]]


class ScrapeSources:
    """The endpoints of one agent. Before `start`, `look` scrapes them itself, one after the other."""

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        *,
        interval_seconds: float,
        timeout_seconds: float,
        verdict_window_seconds: float = WINDOW_SECONDS,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._sources = tuple(
            ScrapeSource(endpoint, timeout_seconds=timeout_seconds, verdict_window_seconds=verdict_window_seconds)
            for endpoint in endpoints
        )
        self._seen: dict[str, Seen] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Scrape every endpoint again and again, the first time at once."""
        for source in self._sources:
            name = f"kvledger-scrape-{source.endpoint.name}"
            self._threads.append(threading.Thread(target=self._run, args=(source,), name=name, daemon=True))
            self._threads[-1].start()

    def look(self) -> Seen:
        """What the latest scrape of every endpoint gave; an endpoint without an answer yet is not in it."""
        if not self._threads:
            for source in self._sources:
                self._seen[source.endpoint.name] = source.look()
        # Each value is replaced as a whole by its own thread; this one only reads.
        seen = [self._seen[s.endpoint.name] for s in self._sources if s.endpoint.name in self._seen]
        observations = tuple(observation for found, _ in seen for observation in found)
        return observations, tuple(health for _, healths in seen for health in healths)

    def knows(self, key: str) -> bool:
        """Whether `engine:rank` is scraped."""
        return any(health.source == key for _, healths in list(self._seen.values()) for health in healths)

    def stop(self) -> None:
        """Tell the threads to end; one that waits for an answer ends with it, and holds nobody up."""
        self._stopping.set()

    def _run(self, source: ScrapeSource) -> None:
        while not self._stopping.is_set():
            self._seen[source.endpoint.name] = source.look()
            self._stopping.wait(self._interval_seconds)
