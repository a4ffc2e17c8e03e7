"""An agent under a scraper: timed scrapes, and what the agent's process takes of a core meanwhile."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

import psutil

from bench.errors import BenchError

SCRAPES_PER_SECOND = 20


class Scraper:
    """One connection to the agent, kept open as Prometheus does."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10.0)
        self.page_bytes = 0

    def scrape(self) -> float:
        """Milliseconds of one scrape. Raises `BenchError` for any answer but a page."""
        started_ns = time.perf_counter_ns()
        self._connection.request("GET", "/metrics")
        answer = self._connection.getresponse()
        body = answer.read()
        elapsed_ms = (time.perf_counter_ns() - started_ns) / 1e6
        if answer.status != 200 or b"kvledger_pool_blocks" not in body:
            raise BenchError(f"a scrape was answered {answer.status} with {len(body)} bytes: {body[:120]!r}")
        self.page_bytes = len(body)
        return elapsed_ms

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def cpu_percent(process: psutil.Process, seconds: float, scraper: Scraper | None) -> float:
    """Processor time of the agent over a window, in percent of a core; about one scrape a second by a scraper."""
    before, started, scrapes = process.cpu_times(), time.monotonic(), max(1, int(seconds))
    for number in range(scrapes):
        if scraper is not None:
            scraper.scrape()
        time.sleep(max(0.0, started + (number + 1) * seconds / scrapes - time.monotonic()))
    after, elapsed = process.cpu_times(), time.monotonic() - started
    return float(after.user + after.system - before.user - before.system) / elapsed * 100


def burst(scraper: Scraper, seconds: int) -> list[float]:
    """Milliseconds of scrapes at an even rate over some seconds."""
    found, due = [], time.monotonic()
    for _ in range(seconds * SCRAPES_PER_SECOND):
        time.sleep(max(0.0, due - time.monotonic()))
        found.append(scraper.scrape())
        due += 1 / SCRAPES_PER_SECOND
    return found
