"""Row `fleet`: what the agent takes of a core and of memory over four ledgers of a million blocks, and of a scrape."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench import busywriter, children
from bench.effort import Effort
from bench.errors import BenchError
from bench.estimate import estimate
from bench.result import Bar, Quantity, Result, Sense
from bench.scraper import SCRAPES_PER_SECOND, Scraper, burst, cpu_percent
from bench.tmpfs import ledger_directory
from kvledger.buffers import Buffers
from kvledger.invariants import suspects
from kvledger.reader import Reader
from kvledger.snapshot import Sample
from kvledger_agent.up.child import Child

NAME = "fleet"
LEDGERS, BLOCKS, QUICK_BLOCKS = 4, 1_000_000, 100_000
STEPS_PER_SECOND = 300
WINDOW_SECONDS, QUICK_WINDOW_SECONDS = 5.0, 2.0
READY_SECONDS, WARM_UP_SECONDS = 30.0, 3.0
CPU_BAR, MEMORY_BAR, SCRAPE_BAR = Bar(Sense.AT_MOST, 15.0), Bar(Sense.AT_MOST, 250.0), Bar(Sense.AT_MOST, 50.0)
HOW = f"""`kvledger agent` at its default 1 Hz over {LEDGERS} ledgers of {BLOCKS:,} active blocks or more, with
{busywriter.TENANTS} tenants each. Each is written by a process of its own with the engine's pool, tables and prefix
index: {busywriter.SEQUENCES} sequences over shuffled blocks, {STEPS_PER_SECOND} steps a second, every
{busywriter.REPLACE_EVERY_STEPS}th of which ends one sequence and begins another. Processor time is that of the agent's
process, user and system, in windows of {WINDOW_SECONDS:g} s with one scrape a second, in turns with windows in which
nobody asks it: the difference is rendering. The audits' share is measured in this process, on the same ledgers:
`Reader.audit` and `invariants.suspects`, which must find nothing. Timed scrapes come one after the other over one
connection, {SCRAPES_PER_SECOND} a second, each timed from the request to the last byte."""


@dataclass(slots=True)
class Figures:
    """What the windows measured: percent of a core, milliseconds, megabytes."""

    quiet: list[float] = field(default_factory=list)
    scraped: list[float] = field(default_factory=list)
    audit_ms: list[float] = field(default_factory=list)
    scrape_ms: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    page_bytes: int = 0


class Auditor:
    """The audits of an agent's round, made here. Raises `BenchError` when one finds a fault."""

    def __init__(self, ledgers: Sequence[Path]) -> None:
        buffers = Buffers()
        self._readers = [Reader.open(path, buffers) for path in ledgers]

    def round_ms(self) -> float:
        """Processor milliseconds of an audit with judgement of every ledger."""
        began_ns = time.thread_time_ns()
        found = [suspect for reader in self._readers for suspect in suspects(reader.audit())]
        elapsed_ms = (time.thread_time_ns() - began_ns) / 1e6
        if found:
            raise BenchError(f"healthy ledgers have suspects: {found[:3]}")
        return elapsed_ms

    def samples(self) -> list[Sample]:
        """A sample of every ledger."""
        return [reader.sample() for reader in self._readers]

    def close(self) -> None:
        """Close the readers."""
        for reader in self._readers:
            reader.close()


def measure(effort: Effort) -> list[Result]:
    """Windows of one agent over busy ledgers. Raises `BenchError` when writers or agent do not do their work."""
    blocks, figures = effort.choose(BLOCKS, QUICK_BLOCKS), Figures()
    with ledger_directory() as directory, ExitStack() as stack:
        written = (str(directory), str(blocks), str(STEPS_PER_SECOND))
        ready = [
            stack.enter_context(children.module("bench.busywriter", *written, f"busy-{number}"))
            for number in range(LEDGERS)
        ]
        auditor = stack.enter_context(closing(Auditor([Path(line["ledger"]) for line in ready])))
        agent, scraper = stack.enter_context(_agent(directory))
        time.sleep(WARM_UP_SECONDS)
        first = auditor.samples()
        _take_windows(effort, psutil.Process(agent.pid), scraper, auditor, figures)
        agent.require_running()
        facts = (*_writer_facts(first, auditor.samples(), blocks), f"the page had {scraper.page_bytes:,} bytes")
    return _results(figures, facts)


@contextmanager
def _agent(directory: Path) -> Iterator[tuple[Child, Scraper]]:
    """The agent on a free port, and a connection to it."""
    child = Child("agent", ["agent", "--directory", str(directory), "--port", "0", "--json"], log=directory / "log")
    try:
        scraper = Scraper(str(child.first_line(READY_SECONDS)["url"]))
        yield child, scraper
        scraper.close()
    finally:
        child.stop(READY_SECONDS)


def _take_windows(effort: Effort, agent: psutil.Process, scraper: Scraper, auditor: Auditor, figures: Figures) -> None:
    seconds = QUICK_WINDOW_SECONDS if effort.quick else WINDOW_SECONDS
    auditor.round_ms()  # the first audit looks at everything
    for _ in effort.rounds(full=12, quick=3):
        figures.quiet.append(cpu_percent(agent, seconds, None))
        figures.scraped.append(cpu_percent(agent, seconds, scraper))
        figures.scrape_ms += burst(scraper, effort.choose(full=5, quick=1))
        figures.audit_ms.append(auditor.round_ms())
        figures.memory_mb.append(agent.memory_info().rss / 1e6)
    figures.peak_mb, figures.page_bytes = _peak_mb(agent.pid), scraper.page_bytes


def _peak_mb(pid: int) -> float:
    """The most memory the process ever had resident, by the kernel's count."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise BenchError(f"/proc/{pid}/status says nothing of VmHWM")


def _writer_facts(first: list[Sample], last: list[Sample], blocks: int) -> tuple[str, ...]:
    """What the writers did. Raises `BenchError` if a ledger was not full."""
    active = min(sample.stats.whole("active_blocks") for sample in (*first, *last))
    if active < blocks:
        raise BenchError(f"{active:,} active blocks at the least, {blocks:,} were to be audited")
    rates = [_steps_per_second(*pair) for pair in zip(first, last, strict=True)]
    return (
        f"the writers made {', '.join(f'{rate:.0f}' for rate in rates)} steps a second, two publications each",
        f"{active:,} active blocks at the least",
    )


def _steps_per_second(first: Sample, last: Sample) -> float:
    steps = (last.stats.counter("engine_steps_total") or 0.0) - (first.stats.counter("engine_steps_total") or 0.0)
    return steps / ((last.clock_ns - first.clock_ns) / 1e9)


def _results(figures: Figures, facts: tuple[str, ...]) -> list[Result]:
    rendering = [scraped - quiet for scraped, quiet in zip(figures.scraped, figures.quiet, strict=True)]
    cpu = (
        Quantity("without scrapes, share of one core", estimate(figures.quiet), "%"),
        Quantity("rendering at a scrape a second, share of one core", estimate(rendering), "%"),
        Quantity("the audits of a round with judgement, processor time", estimate(figures.audit_ms), "ms"),
    )
    peak = (*facts, f"at most {figures.peak_mb:.0f} MB were ever resident")
    title = f"the agent over {LEDGERS} busy ledgers of {BLOCKS:,} blocks"
    return [
        _result(f"{title}, sampled and scraped at 1 Hz, share of one core", figures.scraped, "%", CPU_BAR, facts, cpu),
        _result(f"{title}, resident memory", figures.memory_mb, "MB", MEMORY_BAR, peak),
        _scrape_result(f"a scrape of {title}, p99", figures.scrape_ms, facts),
    ]


def _result(
    name: str, windows: list[float], unit: str, bar: Bar, facts: tuple[str, ...], behind: tuple[Quantity, ...] = ()
) -> Result:
    return Result(
        row=NAME, name=name, estimate=estimate(windows), unit=unit, how=HOW, bar=bar, quantities=behind, facts=facts
    )


def _scrape_result(name: str, scrapes: list[float], facts: tuple[str, ...]) -> Result:
    return Result(
        row=NAME,
        name=name,
        estimate=estimate(scrapes, quantile=0.99),
        unit="ms",
        how=HOW,
        bar=SCRAPE_BAR,
        quantities=(Quantity("a scrape, p50", estimate(scrapes), "ms"),),
        facts=facts,
    )
