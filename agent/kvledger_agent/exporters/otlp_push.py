"""Sends the agent's latest fleet to an OTLP endpoint, again and again, from a thread of its own.

Nothing waits for it and nothing queues: what an endpoint does not take is counted, and a newer sample is tried later.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult

from kvledger_agent.agent import Agent, Stale
from kvledger_agent.config import AgentConfig
from kvledger_agent.exporters.otlp import OtlpMetrics, resource_of

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 60.0
STOP_SECONDS = 1.0
_LIBRARY_LOGGER = "opentelemetry.exporter.otlp"


def pause_seconds(failures_in_a_row: int, interval_seconds: float) -> float:
    """Time until the next export: the interval, doubled with every failure, up to a minute or the interval itself."""
    longest = max(LONGEST_PAUSE_SECONDS, interval_seconds)
    return float(min(longest, interval_seconds * 2.0 ** min(max(0, failures_in_a_row - 1), 16)))


class LastWords(logging.Handler):
    """Keeps the library's last complaint, which it would otherwise log at every attempt."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what gives a reason; that the time ran out is only its consequence."""
        text = record.getMessage()
        if not self.text or "due to timeout, max retries" not in text:
            self.text = text


class OtlpPush:
    """Pushes what an agent samples to `endpoint`, a whole URL, once per interval. `start` it, `stop` it.

    Headers, compression and certificates are the library's own variables, OTEL_EXPORTER_OTLP_HEADERS and so on.
    """

    def __init__(self, agent: Agent, endpoint: str) -> None:
        config: AgentConfig = agent.config
        self._agent, self._endpoint, self._interval = agent, endpoint, config.otlp_interval_seconds
        self._metrics = OtlpMetrics(resource_of(config), started_ns=time.time_ns())
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=config.otlp_timeout_seconds, session=_session())
        self._failures, self._round = 0, 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvledger-otlp", daemon=True)
        self._words = _take_words()

    def start(self) -> None:
        """Begin to export, with the first sample there is."""
        self._thread.start()

    def stop(self) -> None:
        """End, giving an export that is going on a moment. Idempotent."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._exporter.shutdown()
            if self._thread.ident is not None:
                self._thread.join(STOP_SECONDS)

    def push(self) -> bool | None:
        """Export the latest sample now. Whether the endpoint took it; None when there was no new, fresh one to send."""
        try:
            fleet = self._agent.fresh_fleet()
        except Stale:
            return None
        if fleet.round == self._round:
            return None
        tally, age_ns = self._agent.exports, time.monotonic_ns() - fleet.sampled_ns
        data = self._metrics.collect(fleet, wall_ns=time.time_ns() - age_ns, tally=tally)
        if data is None:
            return None
        self._round = fleet.round
        tally.tried += 1
        self._words.text = ""
        taken = self._exporter.export(data) is MetricExportResult.SUCCESS
        self._note(taken)
        return taken

    def _note(self, taken: bool) -> None:
        if taken:
            if self._failures:
                logger.info("otlp=%s working=true failures_in_a_row=%d", self._endpoint, self._failures)
            self._failures = 0
            return
        if self._stopping.is_set():
            return
        self._agent.exports.failed += 1
        self._failures += 1
        if self._failures == 1:
            logger.warning("otlp=%s working=false error=%s", self._endpoint, self._words.text or "unknown")

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.wait(pause):
            try:
                sent = self.push()
            except Exception:
                # Whatever is wrong here must not end the exports for good.
                logger.exception("otlp=%s working=false", self._endpoint)
                self._agent.exports.failed += 1
                self._failures, sent = self._failures + 1, False
            idle = min(self._interval, self._agent.config.interval_seconds)
            pause = idle if sent is None else pause_seconds(self._failures, self._interval)
        self._metrics.close()


class NotTaken(Exception):
    """The endpoint answered as if all were well, but did not take everything."""


def _session() -> requests.Session:
    """A session whose answers are looked at: the library takes a redirect, and a partial success, for success."""
    session = requests.Session()
    session.hooks["response"].append(_check)
    return session


def _check(response: requests.Response, *_: Any, **__: Any) -> None:
    """Raise `NotTaken` for an answer that means that points were lost."""
    if 300 <= response.status_code < 400:
        response.close()  # nobody reads it after this error, and its connection would stay open
        raise NotTaken(f"{response.status_code}, redirected to {response.headers.get('Location', 'nowhere')}")
    if response.status_code == 200:
        try:
            partial = ExportMetricsServiceResponse.FromString(response.content).partial_success
        except DecodeError:  # some gateways answer in their own words
            return
        if partial.rejected_data_points:
            raise NotTaken(f"{partial.rejected_data_points} points rejected: {partial.error_message}")


def _take_words() -> LastWords:
    """The one handler of the library's exporter log, which goes nowhere else."""
    library = logging.getLogger(_LIBRARY_LOGGER)
    words = next((h for h in library.handlers if isinstance(h, LastWords)), None) or LastWords()
    library.handlers, library.propagate = [words], False
    return words
