"""Observations for people: one panel per engine. Formats; computes nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvledger_agent.observation import Observation, PoolView, Series
from kvledger_agent.sums import by_first_label
from kvledger_agent.tables import UNKNOWN, findings_table, instant_text, seconds_text

BAR_CELLS = 48
UNFOLDED_COLUMNS = 160
LEAST_SHARE = 0.01
_VERDICT_STYLE = {"healthy": "green", "leaking": "red", "frozen": "red", "stalled": "red"}


def console() -> Console:
    """Standard output. Where it is no terminal, wide enough that no table has to fold."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else UNFOLDED_COLUMNS
    return Console(width=wide)


def engine_panel(observation: Observation) -> RenderableType:
    """One engine on one screen."""
    parts: list[RenderableType] = [_verdict(observation), _numbers(observation)]
    parts += [Text(f"note: {note.kind.word}  {note.evidence}", style="yellow") for note in observation.notes or ()]
    if observation.findings:
        parts.append(findings_table(observation.findings))
    return Panel(Group(*parts), title=_title(observation), title_align="left")


def _title(observation: Observation) -> str:
    identity, recorded = observation.identity, observation.liveness.recorded
    title = f"{identity.key}  {identity.model}  {observation.liveness.status}"
    return title if recorded is None else f"{title} at {instant_text(recorded.wall_ns)}, {recorded.status} then"


def _verdict(observation: Observation) -> Text:
    view = observation.verdict
    if view is None:
        return Text(UNKNOWN)
    action = "" if view.action.word == "none" else f"  → {view.action.word}"
    word = "in doubt" if observation.in_doubt and view.verdict.word == "healthy" else view.verdict.word
    style = f"bold {_VERDICT_STYLE.get(word, 'yellow')}"
    told = f": {view.reason.word}{action}  {view.evidence}"
    return Text.assemble((word, style), told, ("" if word == "healthy" else f"\nto do: {view.to_do}", "bold"))


def _request_time(observation: Observation) -> str:
    """Where request time went, the largest parts first; what is less than one percent is left out."""
    time = None if observation.verdict is None else observation.verdict.request_time
    if time is None:
        return UNKNOWN
    parts = sorted(time.shares.items(), key=lambda part: -part[1])
    told = "   ".join(f"{part} {share:.0%}" for part, share in parts if share >= LEAST_SHARE)
    return f"{told}   ({time.requests:,} requests in {time.window_seconds:g} s)" if told else "nobody was there"


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
        table.add_row("request time", _request_time(observation))
        table.add_row("waiting for", _nonzero(_by_first(observation.requests.waiting)))
        if observation.requests.waiting_by_reason is not None:
            table.add_row("  engine says", _nonzero(observation.requests.waiting_by_reason))
        table.add_row("oldest wait", _oldest(observation.requests.oldest_wait_seconds))
    for name, label in (("rejections_total", "rejected"), ("cancellations_total", "cancelled")):
        table.add_row(label, _nonzero(_by_first(observation.totals.counters.get(name))))
    recorded = observation.liveness.recorded is not None
    table.add_row("heartbeat", _age(observation.liveness.heartbeat_age_seconds, "before" if recorded else "ago"))
    return table


def _bar(pool: PoolView) -> Text:
    """The pool as a bar: active, cached, free."""
    if pool.active_blocks is None or pool.capacity_blocks is None:
        return Text(UNKNOWN if pool.usage_ratio is None else _usage(pool.usage_ratio, pool.usage_includes_evictable))
    if pool.cached_blocks is None:  # which of the others are cached is not known
        active = _cells(pool.active_blocks, pool.capacity_blocks)
        return Text.assemble(("█" * active, "red"), ("?" * (BAR_CELLS - active), "dim"))
    active = _cells(pool.active_blocks, pool.capacity_blocks)
    cached = min(BAR_CELLS - active, _cells(pool.cached_blocks, pool.capacity_blocks))
    return Text.assemble(("█" * active, "red"), ("▒" * cached, "yellow"), ("·" * (BAR_CELLS - active - cached), "dim"))


def _usage(ratio: float, includes_evictable: bool | None) -> str:
    """A usage of which no blocks are known, and what it means."""
    meanings = {True: ", blocks kept for reuse included", False: ", blocks kept for reuse not included"}
    return f"{ratio:.1%} used{meanings[includes_evictable] if includes_evictable is not None else ''}"


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
    together = () if pool.available_blocks is None else (("free or cached", pool.available_blocks),)
    return _counts((*counts, *together))


def _counts(counts: Iterable[tuple[str, int | None]]) -> str:
    return "   ".join(f"{name} {_number(count)}" for name, count in counts)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _by_first(series: Series | None) -> Mapping[str, float] | None:
    return None if series is None else by_first_label(series)


def _nonzero(counts: Mapping[str, float] | None) -> str:
    if counts is None:
        return UNKNOWN
    return "   ".join(f"{name} {count:,.0f}" for name, count in counts.items() if count) or "none"


def _oldest(series: Series | None) -> str:
    if series is None:
        return UNKNOWN
    oldest = sorted(series.items(), key=lambda item: -item[1])[:3]
    return "   ".join(f"{cause} {seconds_text(age)} ({tenant})" for (cause, tenant), age in oldest) or "none"


def _age(seconds: float | None, word: str) -> str:
    return UNKNOWN if seconds is None else f"{seconds_text(seconds)} {word}"
