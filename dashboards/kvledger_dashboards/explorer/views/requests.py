"""Live requests as rows of a table, and their waits by cause as bars. From the agent's requests document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvledger_dashboards.explorer.views.text import duration, spaced

MAX_BARS = 12
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitBars:
    """Waits of some requests: `seconds[cause]` has one value per name in `requests`. `others` have no bar."""

    requests: tuple[str, ...]
    seconds: Mapping[str, tuple[float, ...]]
    others: int


def short_id(row: Row) -> str:
    """A request's id as far as the ledger keeps it; its serial where it has none."""
    head, tail = str(row.get("id_head") or ""), str(row.get("id_tail") or "")
    if not head:
        return f"serial {row['serial']}"
    return head if len(head) <= 20 else f"{head[:10]}…{tail[-8:] or head[-8:]}"


def chosen(rows: Iterable[Row], *, states: Sequence[str] = (), tenants: Sequence[str] = ()) -> list[Row]:
    """The requests in one of `states` and of one of `tenants`; of all where none is named."""
    return [row for row in rows if (not states or row["state"] in states) and (not tenants or row["tenant"] in tenants)]


def values(rows: Iterable[Row], name: str) -> list[str]:
    """The distinct words in one field, sorted."""
    return sorted({str(row[name]) for row in rows})


def table(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows as the page shows them, the greatest holders of blocks first. What has not happened yet is None."""
    ordered = sorted(rows, key=lambda row: (-row["blocks"], row["serial"]))
    return [_table_row(row) for row in ordered]


def _table_row(row: Row) -> dict[str, Any]:
    waits = row["wait_seconds"]
    return {
        "serial": row["serial"],
        "request": short_id(row),
        "tenant": row["tenant"],
        "state": row["state"],
        "waits for": spaced(row["wait_cause"]) if row["wait_cause"] else "nothing",
        "blocks": row["blocks"],
        "shared": row["shared_blocks"],
        "peak": row["peak_blocks"],
        "age": row["age_seconds"],
        "waited": sum(waits.values()),
        "mostly for": spaced(max(waits, key=lambda cause: float(waits[cause]))) if waits else "nothing",
        "first token": row["time_to_first_token_seconds"],
        "computed tokens": row["computed_tokens"],
        "prompt tokens": row["prompt_tokens"],
        "output tokens": row["output_tokens"],
        "preemptions": row["preemptions"],
        "block-seconds": row["block_seconds"],
    }


def wait_bars(rows: Iterable[Row], limit: int = MAX_BARS) -> WaitBars:
    """The requests that have waited longest, with their waits by cause."""
    waited = [row for row in rows if sum(row["wait_seconds"].values()) > 0]
    longest = sorted(waited, key=lambda row: -sum(row["wait_seconds"].values()))[:limit]
    totals: dict[str, float] = {}
    for row in longest:
        for cause, seconds in row["wait_seconds"].items():
            totals[cause] = totals.get(cause, 0.0) + seconds
    causes = sorted(totals, key=lambda cause: -totals[cause])
    return WaitBars(
        requests=tuple(f"{short_id(row)} · {row['serial']}" for row in longest),
        seconds={cause: tuple(float(row["wait_seconds"].get(cause, 0.0)) for row in longest) for cause in causes},
        others=len(waited) - len(longest),
    )


def waits_caption(rows: Sequence[Row], bars: WaitBars) -> str:
    """What the bars say in words: these waits include those of requests that run by now."""
    in_all = ", ".join(f"{spaced(cause)} {duration(seconds)}" for cause, seconds in waited_by_cause(rows).items())
    drawn = (
        f" Drawn: the {len(bars.requests)} of {len(bars.requests) + bars.others} that waited longest."
        if bars.others
        else ""
    )
    return f"Live requests have waited so far, those that run by now included: {in_all}.{drawn}"


def waited_by_cause(rows: Iterable[Row]) -> dict[str, float]:
    """Seconds the live requests have waited in all, by cause, the greatest first."""
    totals: dict[str, float] = {}
    for row in rows:
        for cause, seconds in row["wait_seconds"].items():
            totals[cause] = totals.get(cause, 0.0) + seconds
    return dict(sorted(totals.items(), key=lambda item: -item[1]))
