"""Waits as tables of at most 100 columns: who, how many, percentiles, and what the mean is made of. Formats only."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvledger_agent.tables import seconds_text
from kvledger_agent.waits import PARTS, Quantiles, Timing, WaitRow, WaitsView

LEAST_SECONDS = 0.0005
_COLUMNS = ("who", "what", "requests", "P50", "P95", "P99", "mean is made of")


def waits_table(name: str, view: WaitsView) -> RenderableType:
    """One engine: a row per length of time of all, each tenant and each class; then who waits longest."""
    table = Table(
        title=f"{name}  the last {view.window_seconds:g} s",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in _COLUMNS:
        table.add_column(column, justify="right" if column in ("requests", "P50", "P95", "P99") else "left")
    for row in view.rows:
        for what, timing in (("first token", row.first_token), ("whole", row.whole)):
            if timing is not None:
                table.add_row(_who(row), what, *_cells(timing))
    return Group(table, *_waiting(view), _allocation(view))


def _who(row: WaitRow) -> str:
    if row.tenant is not None:
        return f"tenant {row.tenant}"
    return "all" if row.request_class is None else f"class {row.request_class}"


def _cells(timing: Timing) -> tuple[str, ...]:
    known, seconds = timing.parts, timing.seconds
    made_of = ", ".join(f"{part} {seconds_text(known[part].mean)}" for part in PARTS if _is_shown(known, part))
    times = (seconds_text(value) for value in (seconds.p50, seconds.p95, seconds.p99))
    return (f"{timing.requests:,}", *times, made_of)


def _waiting(view: WaitsView) -> list[Text]:
    lines = [
        f"waiting for {wait.cause}: {wait.waiting}, the oldest {seconds_text(wait.seconds)} (request {wait.serial}, "
        f"tenant {wait.tenant})"
        for wait in view.oldest
    ]
    return [Text(line) for line in lines or ["nobody waits"]]


def _allocation(view: WaitsView) -> Text:
    """What the allocator takes, of steps and each time."""
    one = view.allocation
    if view.allocating is None or one is None:
        return Text("allocation: not measured by this engine, and within prefill and decode")
    times = ", ".join(
        f"{name} ≤ {1000 * value:.3g} ms" for name, value in (("P50", one.p50), ("P95", one.p95), ("P99", one.p99))
    )
    return Text(f"allocation: {view.allocating:.1%} of the steps' time; one takes {times}")


def _is_shown(parts: Mapping[str, Quantiles], part: str) -> bool:
    """Whether a part is worth a word: half a millisecond on average, or more."""
    return part in parts and parts[part].mean >= LEAST_SECONDS
