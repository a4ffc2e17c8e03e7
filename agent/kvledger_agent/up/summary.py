"""What `kvledger up` saw: folded page by page while it ran, printed at its end. Judges; starts and stops nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from kvledger.reasons import BY_REASON
from kvledger.words import Reason
from kvledger_agent.scrape.page import Page
from kvledger_agent.up.page import counted

STATES = ("free", "cached", "active")


@dataclass(slots=True)
class Watch:
    """Everything seen so far; `see` takes one page, `problems` says what was wrong in any of them."""

    samples: int = 0
    refused_pages: int = 0
    capacity_blocks: int = 0
    peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("shared", "logical", "active", "cached"), 0))
    leaked_blocks: int = 0
    findings: dict[str, int] = field(default_factory=dict)
    broken_samples: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    last: Page | None = None

    def see(self, page: Page | None) -> None:
        """Fold one page in; None is a page that was not to be had."""
        if page is None or page.sum("kvledger_pool_capacity_blocks") is None:
            self.refused_pages += page is None
            return
        self.samples, self.last = self.samples + 1, page
        self.capacity_blocks = int(page.sum("kvledger_pool_capacity_blocks") or 0)
        blocks = {state: int(page.sum("kvledger_pool_blocks", state=state) or 0) for state in STATES}
        self.broken_samples += sum(blocks.values()) != self.capacity_blocks
        self._raise_peak("active", blocks["active"])
        self._raise_peak("cached", blocks["cached"])
        self._raise_peak("shared", int(page.sum("kvledger_group_shared_blocks") or 0))
        self._raise_peak("logical", int(page.sum("kvledger_group_logical_blocks") or 0))
        self.leaked_blocks = max(self.leaked_blocks, int(page.sum("kvledger_pool_leaked_blocks") or 0))
        for reason in counted(page, "kvledger_verdict_reason", "verdict_reason"):
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        for kind, count in counted(page, "kvledger_findings", "kind").items():
            self.findings[kind] = max(self.findings.get(kind, 0), count)

    def _raise_peak(self, name: str, value: int) -> None:
        self.peak[name] = max(self.peak[name], value)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSummary:
    """The end of a run. Blocks are the peaks over all samples; `active_blocks_after_drain` is None if it never drained.

    `interrupted` says that a person ended it (Ctrl-C, SIGTERM). `urls` is where things listened, None for what did not.
    `cancellations` are those until the load was told to stop: what the stop itself cut is `cut` in `load`, its report.
    `waits` maps each cause to how many requests waited for it and for how long in all, `reasons` each reason of a
    verdict to the samples that had it; `problems` is empty when every promise of the run held.
    """

    seconds: float
    interrupted: bool
    seed: int
    trace: str | None
    urls: Mapping[str, str | None]
    engine: Mapping[str, Any]
    samples: int
    capacity_blocks: int
    shared_blocks: int
    logical_blocks: int
    active_blocks: int
    cached_blocks: int
    leaked_blocks: int
    active_blocks_after_drain: int | None
    rejections: Mapping[str, int]
    cancellations: Mapping[str, int]
    preemptions: int
    waits: Mapping[str, Mapping[str, float]]
    findings: Mapping[str, int]
    reasons: Mapping[str, int]
    load: Mapping[str, Any]
    problems: tuple[str, ...]


def waits_of(page: Page) -> dict[str, dict[str, float]]:
    """Waits by cause: number of requests, total seconds."""
    counts, seconds = (
        counted(page, "kvledger_wait_seconds_count", "cause"),
        page.by("kvledger_wait_seconds_sum", "cause") or {},
    )
    return {cause: {"requests": n, "seconds": round(seconds.get(cause, 0.0), 3)} for cause, n in counts.items()}


def problems_of(watch: Watch, active_after_drain: int | None, load_failures: Mapping[str, int]) -> tuple[str, ...]:
    """Every broken promise of a run, as a sentence."""
    found = []
    if not watch.samples:
        found.append("the agent never showed an engine")
    if watch.broken_samples:
        found.append(f"free + cached + active was not the capacity in {watch.broken_samples} samples")
    if watch.refused_pages:
        found.append(f"the agent refused {watch.refused_pages} pages")
    if watch.findings:
        found.append(f"findings in an engine without a fault: {watch.findings}")
    if active_after_drain is None:
        found.append("the engine did not drain")
    elif active_after_drain:
        found.append(f"{active_after_drain} blocks were still active after the drain")
    if load_failures:
        found.append(f"requests failed: {dict(load_failures)}")
    return tuple(found)


def render(summary: UpSummary) -> RenderableType:
    """The summary for people."""
    table = Table(
        title=f"{summary.seconds:.0f} s, seed {summary.seed}, {summary.samples} samples",
        title_justify="left",
        show_header=False,
    )
    table.add_column("")
    table.add_column("", justify="right")
    rows: list[tuple[str, object]] = [
        ("capacity, blocks", summary.capacity_blocks),
        ("peak active", summary.active_blocks),
        ("peak logical", summary.logical_blocks),
        ("peak shared", summary.shared_blocks),
        ("leaked", summary.leaked_blocks),
        ("active after the drain", summary.active_blocks_after_drain),
        ("preemptions", summary.preemptions),
        *((f"verdict {_verdict_of(reason)}", f"{count:,} samples") for reason, count in _most_first(summary.reasons)),
        *((f"rejected: {reason}", count) for reason, count in summary.rejections.items()),
        *((f"cancelled: {cause}", count) for cause, count in summary.cancellations.items()),
        *(
            (f"waited for {cause}", f"{w['requests']:,.0f} waits, {w['seconds']:,.0f} s in all")
            for cause, w in summary.waits.items()
        ),
    ]
    for name, value in rows:
        table.add_row(name, "unknown" if value is None else f"{value:,}" if isinstance(value, int) else str(value))
    verdict = "\n".join(f"problem: {problem}" for problem in summary.problems) or "every count added up; nothing leaked"
    return Group(table, verdict)


def _most_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])


def _verdict_of(reason: str) -> str:
    """The verdict of a reason's word, and the reason."""
    return f"{BY_REASON[Reason[reason.upper()]].verdict.word}: {reason}"
