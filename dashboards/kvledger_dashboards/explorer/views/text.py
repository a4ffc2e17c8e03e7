"""Numbers and foreign words as text for people. Unknown is said to be unknown; it never becomes 0."""

from __future__ import annotations

import re

UNKNOWN = "unknown"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+!|~$:&-])")
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def count(value: float | None) -> str:
    """A whole number with separators."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def of(part: float | None, whole: float | None) -> str:
    """`part of whole`."""
    return f"{count(part)} of {count(whole)}"


def share(part: float | None, whole: float | None) -> str:
    """`part` as a percentage of `whole`."""
    return UNKNOWN if part is None or not whole else f"{100 * part / whole:.0f} %"


def duration(seconds: float | None) -> str:
    """A length of time in its two largest units."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(amount: float | None) -> str:
    """Bytes in the largest unit that leaves a number of 1 or more."""
    if amount is None:
        return UNKNOWN
    unit = 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:,.0f} {_UNITS[unit]}" if unit == 0 else f"{amount:,.1f} {_UNITS[unit]}"


def literal(foreign: object) -> str:
    """A word that came from outside, for markdown: shown letter by letter, so that it can neither format nor load."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(foreign).split()))


def spaced(word: str) -> str:
    """One of our own words as people read it: `pool_bound` is `pool bound`."""
    return word.replace("_", " ")
