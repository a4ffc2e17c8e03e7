"""Row `agent`: what the agent takes of a core beside a loaded engine, and how fast it answers a scrape."""

from __future__ import annotations

import http.client
import time
from urllib.parse import urlsplit

import psutil

from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import estimate
from bench.result import Bar, Quantity, Result, Sense
from kvledger_agent.up.settings import UpSettings
from kvledger_agent.up.stack import Stack

NAME = "agent"
CPU_BAR, SCRAPE_BAR = Bar(Sense.AT_MOST, 5.0), Bar(Sense.AT_MOST, 50.0)
PROFILE = "mixed"
WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5.0, 2.5
SCRAPES_PER_SECOND = 20
WARM_UP_SECONDS = 3.0
_SETTINGS = UpSettings(model="cell")
HOW = f"""`kvledger agent` at its default 1 Hz beside one engine as `kvledger up` starts it, with the cell model
({_SETTINGS.blocks:,} blocks, `{_SETTINGS.step_time}`) under `kvledger load --profile {PROFILE}` at
{_SETTINGS.rate_per_second:g} requests a second. Processor time is that of the agent's process, user and system, in
windows of {WINDOW_SECONDS:g} s with one scrape a second, in turns with windows in which nobody asks it. Timed scrapes
come one after the other over one connection, {SCRAPES_PER_SECOND} a second, each timed from the request to the
last byte: the first after each sample finds a page to render, the others find it rendered."""


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


def measure(effort: Effort) -> list[Result]:
    """Windows without and with a scrape a second, in turns, and the scrapes between them. Raises `BenchError`."""
    with Stack(_SETTINGS, seed=0) as stack:
        stack.start()
        stack.start_load(trace=None, seconds=None, profile=PROFILE)
        time.sleep(WARM_UP_SECONDS)
        scraper = Scraper(stack.agent_url)
        seconds = QUICK_WINDOW_SECONDS if effort.quick else WINDOW_SECONDS
        quiet, scraped, scrapes = [], [], []
        for _ in effort.rounds(full=12, quick=3):
            quiet.append(_cpu_percent(stack, seconds, None))
            scraped.append(_cpu_percent(stack, seconds, scraper))
            scrapes += _burst(scraper, effort.choose(full=5, quick=1))
            stack.require_running()
        scraper.close()
        facts = (_load_fact(stack), f"the page had {scraper.page_bytes:,} bytes")
    return [_cpu_result(quiet, scraped, facts), _scrape_result(scrapes, facts)]


def _cpu_percent(stack: Stack, seconds: float, scraper: Scraper | None) -> float:
    """Processor time of the agent over a window, in percent of a core."""
    assert stack.agent is not None
    process = psutil.Process(stack.agent.pid)
    before, started = process.cpu_times(), time.monotonic()
    for _ in range(max(1, int(seconds))):
        if scraper is not None:
            scraper.scrape()
        time.sleep(seconds / max(1, int(seconds)))
    after, elapsed = process.cpu_times(), time.monotonic() - started
    return float(after.user + after.system - before.user - before.system) / elapsed * 100


def _burst(scraper: Scraper, seconds: int) -> list[float]:
    """Milliseconds of scrapes at an even rate over some seconds."""
    found, due = [], time.monotonic()
    for _ in range(seconds * SCRAPES_PER_SECOND):
        time.sleep(max(0.0, due - time.monotonic()))
        found.append(scraper.scrape())
        due += 1 / SCRAPES_PER_SECOND
    return found


def _load_fact(stack: Stack) -> str:
    """What the load was. Raises `BenchError` when there was none: an idle engine is no measurement."""
    report = stack.stop_load()
    if not report.get("completed") or report.get("failed"):
        raise BenchError(f"the load completed {report.get('completed')} requests, {report.get('failed')} failed")
    return (
        f"the load sent {report['sent']} requests and completed {report['completed']}, "
        f"{report['output_tokens_per_second']:.0f} output tokens a second"
    )


def _cpu_result(quiet: list[float], scraped: list[float], facts: tuple[str, ...]) -> Result:
    return Result(
        row=NAME,
        name="the agent beside one loaded engine, sampled and scraped at 1 Hz, share of one core",
        estimate=estimate(scraped),
        unit="%",
        how=HOW,
        bar=CPU_BAR,
        quantities=(Quantity("share of one core without scrapes", estimate(quiet), "%"),),
        facts=facts,
    )


def _scrape_result(scrapes: list[float], facts: tuple[str, ...]) -> Result:
    return Result(
        row=NAME,
        name="a scrape of that agent, p99",
        estimate=estimate(scrapes, quantile=0.99),
        unit="ms",
        how=HOW,
        bar=SCRAPE_BAR,
        quantities=(Quantity("a scrape, p50", estimate(scrapes), "ms"),),
        facts=facts,
    )
