"""A checkup for people: a table of signals, and sentences on what it means. Formats; computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvledger_agent.scrape.capabilities import UNVERIFIED, Capability, Checkup

_USAGE = {
    True: "usage counts blocks kept for reuse as used: no idle hold can be told",
    False: "usage counts blocks in use only",
    None: "it is not known whether usage counts blocks kept for reuse",
}


def checkup_report(found: Checkup) -> RenderableType:
    """Everything a checkup found, on one screen."""
    return Group(_head(found), _table(found), *map(Text, _sentences(found)))


def _head(found: Checkup) -> Text:
    version = found.version_range or "no version range fits"
    verified = "" if found.verified else f"  {UNVERIFIED}: never run against a real one"
    ranks = "" if found.ranks == (0,) else f"  ranks {', '.join(map(str, found.ranks))}"
    models = f"  {', '.join(found.models)}" if found.models else ""
    return Text.assemble((found.title, "bold"), f" {version}{models}{ranks}  at {found.url}", (verified, "yellow"))


def _table(found: Checkup) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("signal", "", "family", "without it"):
        table.add_column(name, no_wrap=name in ("signal", ""), overflow="fold")
    for row in found.capabilities:
        table.add_row(row.signal, _state(row), row.family, "" if row.readable else _without(row))
    return table


def _state(row: Capability) -> Text:
    if row.readable:
        return Text("reported", "green")
    if row.reported:
        return Text("unreadable", "red")
    return Text("MISSING", "bold red") if row.due else Text("not reported", "yellow")


def _without(row: Capability) -> str:
    return f"blind to {row.blind}; {row.remedy}"


def _sentences(found: Checkup) -> Iterator[str]:
    yield f"{_USAGE[found.usage_includes_evictable]}; {_staleness(found.stale_when_idle_seconds)}"
    if found.sampled_at_finish_only:
        yield f"entered by a request only when it ends: {', '.join(found.sampled_at_finish_only)}"
    judged = ", ".join(found.judged) or "nothing"
    idle = f" (an idle hold after {found.idle_hold_seconds:g} s)" if "idle_hold" in found.judged else ""
    yield f"watched for: {judged}{idle}"
    yield f"without a ledger it cannot tell: {found.blind}"
    if found.damaged_lines or found.truncated:
        cut = ", and it is longer than what is read" if found.truncated else ""
        yield f"{found.damaged_lines} lines of the page could not be read{cut}"
    if found.missing:
        yield f"this version should have, and the page lacks: {', '.join(found.missing)} (or a proxy drops them)"


def _staleness(seconds: float | None) -> str:
    if seconds is None:
        return "its numbers are of its last step"
    if math.isinf(seconds):
        return "idle, it goes on to show its last numbers, true or not"
    return f"idle, its numbers may be {seconds:g} s old"
