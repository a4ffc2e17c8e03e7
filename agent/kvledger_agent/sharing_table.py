"""A sharing account as a table of at most 80 columns. Formats; computes nothing."""

from __future__ import annotations

from rich import box
from rich.table import Table

from kvledger_agent.sharing_account import PrefixAccount, SharingView
from kvledger_agent.tables import UNKNOWN

SHOWN = 10
KEY_DIGITS = 8
"""Of a key's sixteen, as many as tell a few prefixes apart; all are in the JSON."""
_COLUMNS = ("prefix", "admitted", "hit", "forked", "saved", "lookup", "refs", "index", "copy", "net")


def sharing_table(name: str, view: SharingView | None, *, most: int = SHOWN) -> Table:
    """One engine: a prefix a row, the `most` useful ones; then all others, and the sum."""
    table = Table(
        title=_title(name, view),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "prefix" else "right")
    if view is None:
        return table
    for account in view.prefixes[:most]:
        table.add_row(*_row((account.prefix or "")[:KEY_DIGITS], account))
    left_out = len(view.prefixes) - most
    if left_out > 0:
        table.add_row(f"({left_out} more)", *[""] * (len(_COLUMNS) - 1))
    table.add_row(*_row("others", view.others))
    table.add_row(*_row("all", view.total))
    return table


def _title(name: str, view: SharingView | None) -> str:
    if view is None:
        return f"{name}  keeps no account of sharing"
    pace = view.seconds_per_prompt_token
    return f"{name}  a prompt token takes {UNKNOWN if pace is None else _time(pace)}; since this start"


def _row(name: str, account: PrefixAccount) -> tuple[str, ...]:
    saved, net = (UNKNOWN if s is None else _time(s) for s in (account.saved_seconds, _magnitude(account)))
    sign = "-" if account.net_seconds is not None and account.net_seconds < 0 else ""
    spent = (account.lookup_seconds, account.reference_seconds, account.index_seconds, account.copy_seconds)
    return (
        name,
        f"{account.admissions:,}",
        f"{account.hit_tokens:,}",
        f"{account.forked_tokens:,}",
        saved,
        *map(_time, spent),
        sign + net,
    )


def _magnitude(account: PrefixAccount) -> float | None:
    return None if account.net_seconds is None else abs(account.net_seconds)


def _time(seconds: float) -> str:
    """A length of time with two digits or more; look-ups take microseconds."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 10 or unit == "µs":
            return f"{seconds * factor:,.0f} {unit}"
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    raise AssertionError("the last unit takes everything")
