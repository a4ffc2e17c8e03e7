"""A scorecard as a table of at most 80 columns. Formats; computes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.table import Table

from kvledger_agent.quantile import is_wide
from kvledger_agent.scorecard import Concurrency, ReserveItem, Scorecard
from kvledger_agent.tables import UNKNOWN, seconds_text

COLUMNS = 80
Row = tuple[str, str, str]


def scorecard_table(card: Scorecard) -> Table:
    """One engine: a figure a row, what it is made of beside it."""
    table = Table(
        title=f"{card.id}  {card.model}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 2, 0, 0),
        show_header=False,
    )
    for name in ("figure", "value", "of"):
        table.add_column(name, justify="right" if name == "value" else "left", max_width=COLUMNS // 2)
    for row in _rows(card):
        table.add_row(*row)
    table.add_row()
    return table


def _rows(card: Scorecard) -> Iterator[Row]:
    yield "bytes per token", _number(card.bytes_per_token, " B"), "over all cache groups"
    yield "block size", _sizes(card.block_size_tokens), "tokens per block"
    yield "peak active blocks", _number(card.peak_active_blocks), f"of {_number(card.capacity_blocks)}, last 60 s"
    yield from _concurrency(card.concurrency)
    counts = f"{_number(card.rejected)} refused, {_number(card.ended)} ended"
    yield "rejection rate", UNKNOWN if card.rejection_ratio is None else f"{card.rejection_ratio:.2%}", counts
    yield "TTFT P95", *_ttft(card)
    cost = UNKNOWN if card.cost_per_request is None else f"{card.cost_per_request:.6g}"
    yield "cost per request", cost, "all that ended since counters began"


def _concurrency(view: Concurrency) -> Iterator[Row]:
    if view.fits is None:
        yield "maximum concurrency", UNKNOWN, "too few requests have ended"
    else:
        for name, fit in zip(["maximum concurrency"] + [""] * len(view.fits), view.fits, strict=False):
            yield name, f"{fit.requests:,.1f}", f"at P{fit.percentile}, {_number(fit.length_tokens)} tokens"
    yield "  reached", _number(view.reached), "most running at once, last 60 s"
    yield "  KV budget", _number(view.budget_bytes, " B"), "memory of the cache, reserve included"
    for item in view.reserve:
        yield f"{'    ' if item.part_of else '  '}{item.name.replace('_', ' ')}", *_item(item)


def _item(item: ReserveItem) -> tuple[str, str]:
    if item.subtracted:
        note = "subtracted from the budget" if item.part_of is None else f"part of the {item.part_of}"
        note += ", of unknown size" if item.part_of is not None and item.bytes is None else ""
        return _number(item.bytes, " B"), note
    size = "" if item.bytes is None else f"{item.bytes:,} B, "
    return _number(item.blocks), f"blocks, {size}not subtracted"


def _number(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:,.0f}{unit}"


def _sizes(sizes: dict[str, int] | None) -> str:
    if sizes is None:
        return UNKNOWN
    alike = len(set(sizes.values())) == 1
    return str(next(iter(sizes.values()))) if alike else " ".join(f"{k} {v}" for k, v in sizes.items())


def _ttft(card: Scorecard) -> tuple[str, str]:
    """The figure, or what it is over where that is all that is known; and between what it lies."""
    value, low, high = card.ttft_p95_seconds, card.ttft_p95_low_seconds, card.ttft_p95_high_seconds
    if value is None or low is None:
        return UNKNOWN, "to first token, since counters began"
    said = f"over {seconds_text(low)}" if low > 0 and is_wide(low, high) else seconds_text(value)
    ends = f"over {seconds_text(low)}" if high is None else f"{seconds_text(low)} to {seconds_text(high)}"
    return said, f"{ends}, since counters began"
