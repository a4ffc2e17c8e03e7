"""What first tokens and whole requests are made of, as rows of a table. From the agent's waits document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger_dashboards.explorer.views.text import count, duration, spaced

LEAST_SECONDS = 0.0005
Document = Mapping[str, Any]


def table(document: Document) -> list[dict[str, Any]]:
    """A row for each length of time of all requests, of each tenant and of each class that had any."""
    lengths = (("first token", "first_token"), ("whole", "whole"))
    return [
        {
            "who": _who(row),
            "what": what,
            "requests": row[key]["requests"],
            **{name.upper(): row[key]["seconds"][name] for name in ("p50", "p95", "p99")},
            "mean is made of": _parts(row[key]["parts"]),
            "P95 of the parts": _parts(row[key]["parts"], "p95"),
        }
        for row in document["rows"]
        for what, key in lengths
        if row[key] is not None
    ]


def oldest(document: Document) -> str:
    """Who waits longest for each cause, in words."""
    waits = [
        f"{spaced(wait['cause'])}: {count(wait['waiting'])}, the oldest {duration(wait['seconds'])} "
        f"(request {wait['serial']}, tenant {wait['tenant']})"
        for wait in document["oldest"]
    ]
    return f"Waiting now for {'; '.join(waits)}." if waits else "Nobody waits now."


def _who(row: Mapping[str, Any]) -> str:
    if row["tenant"] is not None:
        return f"tenant {row['tenant']}"
    return "all" if row["request_class"] is None else f"class {row['request_class']}"


def _parts(parts: Mapping[str, Mapping[str, float]], of: str = "mean") -> str:
    """The parts that are worth a word, the largest first; a wait by its cause alone, since a cell has little room."""
    known = [(part, seconds[of]) for part, seconds in parts.items() if seconds[of] >= LEAST_SECONDS]
    known.sort(key=lambda part: -part[1])
    return ", ".join(f"{spaced(part.removeprefix('wait_'))} {duration(seconds)}" for part, seconds in known)
