"""The agent: samples ledgers and scraped engines, keeps the latest fleet, and renders it. Owns the sampling thread.

Ledgers are read by one thread only, the sampler; questions that need a fresh look are put to it (`ask`). Scraped
engines are asked by threads of their own, and the sampler takes what they saw last.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from kvledger_agent.config import AgentConfig
from kvledger_agent.errors import AgentError
from kvledger_agent.exporters.page import MetricsPage
from kvledger_agent.exports import ExportTally
from kvledger_agent.finding_log import FindingLog
from kvledger_agent.fleet import Fleet
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.scrape.endpoint import parse_endpoint
from kvledger_agent.scrape.merge import Pages
from kvledger_agent.scrape.sources import ScrapeSources
from kvledger_agent.sources import LedgerSources

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")


class Stale(AgentError):
    """There is no sample, or the last one is too old to be shown as if it were of now."""


class NoSuchEngine(AgentError):
    """No ledger of that engine is being read."""


class NoLedgerOfEngine(AgentError):
    """The engine is scraped: what only a ledger holds, its requests and blocks, is not known."""


class Agent:
    """Samples a directory of ledgers. Without `start`, `sample_once` may be called by hand, from one thread.

    `exports` is counted by whoever exports what it samples.
    """

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        self.exports = ExportTally()
        self._sources = LedgerSources(
            config.directory,
            price_per_hour=config.price_per_hour,
            verdict_window_seconds=config.verdict_window_seconds,
        )
        self._scraped = ScrapeSources(
            map(parse_endpoint, config.scrape),
            interval_seconds=config.scrape_interval_seconds,
            timeout_seconds=config.scrape_timeout_seconds,
            verdict_window_seconds=config.verdict_window_seconds,
        )
        self._findings = FindingLog()
        self._page = MetricsPage()
        self._doors: set[str] = set()
        self._fleet: Fleet | None = None
        self._round = 0
        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    # -- sampling -------------------------------------------------------------------------------------------------

    def sample_once(self) -> Fleet:
        """One round over all ledgers and scraped engines; what it found is the current fleet from then on."""
        pages = Pages(self._scraped.look(), self._doors)
        observations, sources = pages.beside(self._sources.look(pages.complete))
        self._round += 1
        self._findings.note(observations, sources=[source.source for source in sources])
        self._fleet = Fleet(
            round=self._round, sampled_ns=time.monotonic_ns(), observations=observations, sources=sources
        )
        return self._fleet

    @property
    def fleet(self) -> Fleet:
        """The latest round, however old. Raises `Stale` before the first."""
        if self._fleet is None:
            raise Stale("no sample has been taken yet: try again in a second")
        return self._fleet

    def fresh_fleet(self) -> Fleet:
        """The latest round. Raises `Stale` when there is none or it is older than `stale_after_seconds`."""
        fleet = self.fleet
        age = fleet.age_seconds(time.monotonic_ns())
        if age > self.config.stale_after_seconds:
            raise Stale(f"the last sample is {age:.1f} s old: the sampler hangs, restart the agent")
        return fleet

    def metrics_page(self, accept: str = "") -> tuple[bytes, str]:
        """(body, content type) of `/metrics` in the format of an Accept header. Raises `Stale`."""
        return self._page.render(self.fresh_fleet(), accept=accept, now_ns=time.monotonic_ns(), tally=self.exports)

    def metrics_text(self) -> str:
        """The `/metrics` page as Prometheus text. Raises `Stale`."""
        return self.metrics_page()[0].decode()

    # -- the thread -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start sampling in a thread of its own, the first round at once."""
        if self._thread is not None:
            raise AssertionError("an agent is started once")
        self._thread = threading.Thread(target=self._run, name="kvledger-sampler", daemon=True)
        self._scraped.start()
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End the thread, if there is one, and release every file. Idempotent."""
        self._stopping.set()
        self._scraped.stop()
        self._questions.put(None)
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                logger.warning("sampler=hanging waited_seconds=%g", timeout_seconds)
                return
        self._sources.close()

    def close(self) -> None:
        """`stop`, for an agent that was sampled by hand."""
        self.stop()

    def ask(self, key: str, question: Callable[[LedgerSource], Answer]) -> Future[Answer]:
        """Put a question about one engine to the thread that reads ledgers; without a thread it is answered here.

        The future raises `NoSuchEngine`, `NoLedgerOfEngine`, or what the question raises.
        """
        future: Future[Answer] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(question(self._source(key)))
            except Exception as error:  # noqa: BLE001  whoever asked gets it
                future.set_exception(error)

        if self._thread is None:
            answer()
        else:
            self._questions.put(answer)
        return future

    def _source(self, key: str) -> LedgerSource:
        source = self._sources.source(key)
        if source is None and self._scraped.knows(key):
            raise NoLedgerOfEngine(
                f"{key!r} is scraped, and a page tells neither requests nor blocks: this needs a ledger"
            )
        if source is None:
            raise NoSuchEngine(f"no ledger of {key!r} is being read")
        return source

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self.sample_once()
            # Rounds that took too long are dropped, not made up for.
            due = max(due + self.config.interval_seconds, time.monotonic())
            self._answer_until(due)

    def _answer_until(self, due: float) -> None:
        while not self._stopping.is_set() and (left := due - time.monotonic()) > 0:
            try:
                question: Any = self._questions.get(timeout=left)
            except Empty:
                return
            if question is not None:
                question()
