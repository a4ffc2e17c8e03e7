"""Many agents' pages from one process: what the exporter makes of a real engine's observations, each under a name.

A process of its own (`python -m bench.fleetpages FIRST COUNT TENANTS MODELS`): it runs the reference engine on a
virtual clock, looks at its ledger twice as an agent does, prints its address and serves `/NUMBER/metrics` until its
input closes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvledger.clock import VirtualClock
from kvledger.reader import Reader
from kvledger.source import MemorySource
from kvledger.words import CancelCause, RequestClass
from kvledger.writer import Ledger
from kvledger_agent.exporters.page import MetricsPage
from kvledger_agent.fleet import Fleet, SourceHealth
from kvledger_agent.ledger_source import LedgerSource
from kvledger_agent.observation import HistogramView, Labels, Observation, Series, Totals
from kvledger_engine.cells import CellModel
from kvledger_engine.config import EngineConfig
from kvledger_engine.loop import EngineLoop
from kvledger_engine.messages import NewRequest
from kvledger_engine.steptime import StepTime, TimedCompute

BLOCKS, BLOCK_TOKENS, SEQUENCES, WAITING, VOCABULARY = 512, 16, 32, 64, 1000
STEPS = 400
"""Of the engine before each look, 30 ms each."""
STEP_SECONDS, SLOWEST = 0.03, 0.5
NS = 1_000_000_000


def looks(tenants: int) -> tuple[Observation, Observation]:
    """Two observations of a busy engine with so many tenants: waits, refusals, preemptions and cancellations in it."""
    config = EngineConfig(
        engine="template",
        capacity_blocks=BLOCKS,
        block_size_tokens=BLOCK_TOKENS,
        vocab_size=VOCABULARY,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=512,
        max_model_len_tokens=1024,
        max_waiting=WAITING,
    )
    clock = VirtualClock()
    ledger = Ledger.in_memory(config.limits(), clock=clock)
    for number in range(tenants):
        ledger.tenants.quota_blocks[ledger.tenant_column(_tenant(number))] = BLOCKS
    cells = CellModel(capacity_blocks=BLOCKS, block_size_tokens=BLOCK_TOKENS, vocab_size=VOCABULARY)
    loop = EngineLoop(config, ledger, TimedCompute(cells, StepTime(base=STEP_SECONDS), clock))
    source = LedgerSource(Reader.over(MemorySource(ledger.image)))
    first = _after_steps(loop, source, tenants, 0)
    return first, _after_steps(loop, source, tenants, STEPS)


def _after_steps(loop: EngineLoop, source: LedgerSource, tenants: int, begun: int) -> Observation:
    for number in range(begun, begun + STEPS):
        if number % 3 == 0:
            loop.submit(_request(number, tenants))
        if number % 50 == 0:
            loop.cancel([f"request-{number - 30}"], CancelCause.DISCONNECT)
        loop.step()
    return source.look()


def _tenant(number: int) -> str:
    return f"tenant-{number:02d}"


def _request(number: int, tenants: int) -> NewRequest:
    classes = RequestClass.words()
    return NewRequest(
        request_id=f"request-{number}",
        prompt=[(number + position) % VOCABULARY for position in range(32 + number * 7 % 400)],
        max_tokens=20 + number * 13 % 200,
        tenant=_tenant(number % tenants),
        request_class=classes[number % len(classes)],
    )


class MovingEngine:
    """An engine of the fleet: the template's observations under a name, its counters going on at a pace of its own."""

    def __init__(self, number: int, models: int, template: tuple[Observation, Observation]) -> None:
        self._template, self._began_ns, self._round = template, time.monotonic_ns(), 0
        self._pace = SLOWEST + number % 7 / 7
        self._identity = replace(
            template[0].identity, engine=f"engine-{number:03d}", model=f"model-{number % models}", epoch=1
        )
        self._page = MetricsPage()

    def page(self, accept: str) -> tuple[bytes, str]:
        """The page of a new sample."""
        self._round += 1
        now_ns = time.monotonic_ns()
        observation = self._moved(self._pace * (now_ns - self._began_ns) / (STEPS * STEP_SECONDS * NS))
        source = SourceHealth(
            source=self._identity.key, path="", success=True, status="live", error=None, duration_seconds=0.001,
            last_good_ns=now_ns, events_lost=0, reads_retried=0,
        )  # fmt: skip
        fleet = Fleet(round=self._round, sampled_ns=now_ns, observations=(observation,), sources=(source,))
        return self._page.render(fleet, accept=accept, now_ns=now_ns)

    def _moved(self, share: float) -> Observation:
        """Gauges of the two looks in turn; counters and histograms gone on by a share of what lies between the two."""
        first, second = self._template
        shown = self._template[self._round % 2]
        totals = Totals(
            counters={
                name: _later(first.totals.counters[name], s, share) for name, s in second.totals.counters.items()
            },
            histograms={
                name: _later_histograms(first.totals.histograms[name], h, share)
                for name, h in second.totals.histograms.items()
            },
        )
        liveness = replace(shown.liveness, heartbeat_monotonic_ns=time.monotonic_ns())
        return replace(shown, identity=self._identity, liveness=liveness, totals=totals)


def _later(first: Series, second: Series, share: float) -> Series:
    return {labels: value + (value - first.get(labels, value)) * share // 1 for labels, value in second.items()}


def _later_histograms(
    first: Mapping[Labels, HistogramView], second: Mapping[Labels, HistogramView], share: float
) -> Mapping[Labels, HistogramView]:
    return {
        labels: HistogramView(
            bounds=view.bounds,
            buckets=view.buckets + (view.buckets - first[labels].buckets) * share // 1,
            sum=view.sum + (view.sum - first[labels].sum) * share // 1,
        )
        for labels, view in second.items()
    }


class PageServer(ThreadingHTTPServer):
    """A scrape that Prometheus gives up is no failure of ours: Prometheus counts it."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Print what went wrong, unless the other side has hung up."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def serve(first: int, count: int, tenants: int, models: int) -> None:
    """Serve the pages of `count` engines from number `first` on, until the input closes."""
    template = looks(tenants)
    engines = {f"/{number}/metrics": MovingEngine(number, models, template) for number in range(first, first + count)}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body, content_type = engines[self.path].page(self.headers.get("Accept", ""))
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Scrapes are counted by Prometheus."""

    server = PageServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page, _ = engines[f"/{first}/metrics"].page("text/plain")
    print(json.dumps({"url": f"http://127.0.0.1:{server.server_address[1]}", "page_bytes": len(page)}), flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:5]))
