"""Observations for people: one panel per engine, tables of findings and requests. Formats; computes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvledger_agent.observation import Finding, Observation, PoolView, RequestRef, Series
from kvledger_agent.request_rows import RequestRow

BAR_CELLS = 48
UNFOLDED_COLUMNS = 160
MOST_ROWS = 40
_VERDICT_STYLE = {"healthy": "green", "leaking": "red", "frozen": "red", "stalled": "red"}
UNKNOWN = "unknown"


def console() -> Console:
    """Standard output. Where it is no terminal, wide enough that no table has to fold."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNFOLDED_COLUMNS
    return Console(width=wide)


def engine_panel(observation: Observation) -> RenderableType:
    """One engine on one screen."""
    parts: list[RenderableType] = [_verdict(observation), _numbers(observation)]
    if observation.findings:
        parts.append(findings_table(observation.findings))
    return Panel(Group(*parts), title=_title(observation), title_align="left")


def findings_table(findings: Iterable[Finding]) -> Table:
    """Findings with their evidence, one row each."""
    table = _table("finding", "blocks", "who", "what is known", title="findings")
    for finding in findings:
        table.add_row(finding.kind.word, _block_list(finding), _who(finding), finding.known)
    return table


def request_table(rows: Sequence[RequestRow]) -> Table:
    """Who holds what: the requests with the most blocks first, at most `MOST_ROWS` of them."""
    names = ("serial", "request", "tenant", "state", "blocks", "shared", "tokens", "waited", "age")
    table = _table(*names, title="requests")
    largest = sorted(rows, key=lambda row: (-row.blocks, row.serial))
    for row in largest[:MOST_ROWS]:
        table.add_row(
            str(row.serial),
            _request_id(row.id_head, row.id_tail),
            row.tenant,
            row.state,
            str(row.blocks),
            str(row.shared_blocks),
            f"{row.computed_tokens}/{row.prompt_tokens}+{row.max_tokens}",
            _waits(row),
            _seconds(row.age_seconds),
        )
    if len(rows) > MOST_ROWS:
        table.add_row("…", f"{len(rows) - MOST_ROWS} more with fewer blocks")
    return table


def _title(observation: Observation) -> str:
    identity = observation.identity
    return f"{identity.key}  {identity.model}  {observation.liveness.status}"


def _verdict(observation: Observation) -> Text:
    view = observation.verdict
    if view is None:
        return Text(UNKNOWN)
    action = "" if view.action.word == "none" else f"  → {view.action.word}"
    return Text.assemble(
        (view.verdict.word, f"bold {_VERDICT_STYLE.get(view.verdict.word, 'yellow')}"), f"{action}  {view.evidence}"
    )


def _numbers(observation: Observation) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    if observation.pool is not None:
        table.add_row("pool", _bar(observation.pool))
        table.add_row("", _pool_line(observation.pool))
    for group in observation.groups:
        counts = (("logical", group.logical_blocks), ("active", group.active_blocks), ("shared", group.shared_blocks))
        table.add_row(f"group {group.name}", _counts(counts) + f"   tail waste {_number(group.tail_waste_slots)} slots")
    if observation.requests is not None:
        table.add_row("requests", _nonzero(_by_first(observation.requests.live)))
        table.add_row("waiting for", _nonzero(_by_first(observation.requests.waiting)))
        table.add_row("oldest wait", _oldest(observation.requests.oldest_wait_seconds))
    for name, label in (("rejections_total", "rejected"), ("cancellations_total", "cancelled")):
        table.add_row(label, _nonzero(_by_first(observation.totals.counters.get(name))))
    table.add_row("heartbeat", _age(observation.liveness.heartbeat_age_seconds))
    return table


def _bar(pool: PoolView) -> Text:
    """The pool as a bar: active, cached, free."""
    if pool.active_blocks is None or pool.cached_blocks is None:
        return Text(UNKNOWN)
    active = _cells(pool.active_blocks, pool.capacity_blocks)
    cached = min(BAR_CELLS - active, _cells(pool.cached_blocks, pool.capacity_blocks))
    return Text.assemble(("█" * active, "red"), ("▒" * cached, "yellow"), ("·" * (BAR_CELLS - active - cached), "dim"))


def _cells(blocks: int, capacity: int) -> int:
    """Cells of the bar; a single block shows."""
    return min(BAR_CELLS, max(int(blocks > 0), round(BAR_CELLS * blocks / max(1, capacity))))


def _pool_line(pool: PoolView) -> str:
    counts = (
        ("active", pool.active_blocks),
        ("cached", pool.cached_blocks),
        ("free", pool.free_blocks),
        ("of", pool.capacity_blocks),
        ("committed", pool.committed_blocks),
        ("headroom", pool.headroom_blocks),
        ("peak 60 s", pool.peak_active_blocks),
    )
    return _counts(counts)


def _counts(counts: Iterable[tuple[str, int | None]]) -> str:
    return "   ".join(f"{name} {_number(count)}" for name, count in counts)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _by_first(series: Series | None) -> Mapping[str, float] | None:
    """Sums over everything but the first label."""
    if series is None:
        return None
    sums: dict[str, float] = {}
    for labels, value in series.items():
        sums[labels[0]] = sums.get(labels[0], 0.0) + value
    return sums


def _nonzero(counts: Mapping[str, float] | None) -> str:
    if counts is None:
        return UNKNOWN
    return "   ".join(f"{name} {count:,.0f}" for name, count in counts.items() if count) or "none"


def _oldest(series: Series | None) -> str:
    if series is None:
        return UNKNOWN
    oldest = sorted(series.items(), key=lambda item: -item[1])[:3]
    return "   ".join(f"{cause} {_seconds(age)} ({tenant})" for (cause, tenant), age in oldest) or "none"


def _age(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{_seconds(seconds)} ago"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _block_list(finding: Finding) -> str:
    listed = ", ".join(str(block) for block in finding.blocks[:8])
    more = finding.block_count - min(8, len(finding.blocks))
    return f"{listed}, … {more} more" if more > 0 and listed else listed or str(finding.block_count)


def _who(finding: Finding) -> str:
    if finding.owner is not None:
        return f"owner {_ref(finding.owner)}"
    return "\n".join(f"candidate {_ref(ref)}" for ref in finding.candidates[:4]) or UNKNOWN


def _ref(ref: RequestRef) -> str:
    end = "live" if ref.live else ref.ended or "ended"
    return f"{ref.serial} {_request_id(ref.id_head, ref.id_tail)} ({end})"


def _request_id(head: str | None, tail: str | None) -> str:
    """The client's id: whole where its first 40 bytes are all of it, otherwise head…tail."""
    if head is None:
        return ""
    return head if len(head) < 40 or tail is None or head.endswith(tail) else f"{head}…{tail}"


def _waits(row: RequestRow) -> str:
    """Waits by cause, the present one marked."""
    return " ".join(
        f"{cause} {_seconds(value)}{'…' if cause == row.wait_cause else ''}"
        for cause, value in row.wait_seconds.items()
    )


def _table(*columns: str, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
