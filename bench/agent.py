"""Row `agent`: what the agent takes of a core beside a loaded engine, and how fast it answers a scrape."""

from __future__ import annotations

import time

import psutil

from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import estimate
from bench.result import Bar, Quantity, Result, Sense
from bench.scraper import SCRAPES_PER_SECOND, Scraper, burst, cpu_percent
from kvledger_agent.up.settings import UpSettings
from kvledger_agent.up.stack import Stack

NAME = "agent"
CPU_BAR, SCRAPE_BAR = Bar(Sense.AT_MOST, 5.0), Bar(Sense.AT_MOST, 50.0)
PROFILE = "mixed"
WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5.0, 2.5
WARM_UP_SECONDS = 3.0
_SETTINGS = UpSettings(model="cell")
HOW = f"""`kvledger agent` at its default 1 Hz beside one engine as `kvledger up` starts it, with the cell model
({_SETTINGS.blocks:,} blocks, `{_SETTINGS.step_time}`) under `kvledger load --profile {PROFILE}` at
{_SETTINGS.rate_per_second:g} requests a second. Processor time is that of the agent's process, user and system, in
windows of {WINDOW_SECONDS:g} s with one scrape a second, in turns with windows in which nobody asks it. Timed scrapes
come one after the other over one connection, {SCRAPES_PER_SECOND} a second, each timed from the request to the
last byte: the first after each sample finds a page to render, the others find it rendered."""


def measure(effort: Effort) -> list[Result]:
    """Windows without and with a scrape a second, in turns, and the scrapes between them. Raises `BenchError`."""
    with Stack(_SETTINGS, seed=0) as stack:
        stack.start()
        stack.start_load(trace=None, seconds=None, profile=PROFILE)
        time.sleep(WARM_UP_SECONDS)
        assert stack.agent is not None
        process, scraper = psutil.Process(stack.agent.pid), Scraper(stack.agent_url)
        seconds = QUICK_WINDOW_SECONDS if effort.quick else WINDOW_SECONDS
        quiet, scraped, scrapes = [], [], []
        for _ in effort.rounds(full=12, quick=3):
            quiet.append(cpu_percent(process, seconds, None))
            scraped.append(cpu_percent(process, seconds, scraper))
            scrapes += burst(scraper, effort.choose(full=5, quick=1))
            stack.require_running()
        scraper.close()
        facts = (_load_fact(stack), f"the page had {scraper.page_bytes:,} bytes")
    return [_cpu_result(quiet, scraped, facts), _scrape_result(scrapes, facts)]


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
