"""Damage to a valid page, by seed: what can happen to text on its way. Knows lines and bytes, and no engine."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Lines = list[str]
_NUMBER = re.compile(r"[^ ]+$")
_GARBAGE = ("", "\x00", "nan", "NaN", "+Inf", "-Inf", "1e999", "0x10", "1_0", "--1", "1.2.3", "٣", "true", "1,5", "e5")


def damaged(page: str, random_: random.Random) -> str:
    """The page with one to four kinds of damage, none of which changes one number into another."""
    lines = page.split("\n")
    kinds = random_.choices(_KINDS, k=random_.randint(1, 4))
    # Whatever came after an end in the middle of a line would make a whole line of it, with another number.
    for kind in sorted(kinds, key=lambda kind: kind is _cut):
        lines = kind(lines, random_)
    return "\n".join(lines)


def _pick(lines: Lines, random_: random.Random) -> int:
    return random_.randrange(len(lines))


def _removed(lines: Lines, random_: random.Random) -> Lines:
    at = _pick(lines, random_)
    return lines[:at] + lines[at + random_.randint(1, 12) :] or [""]


def _cut(lines: Lines, random_: random.Random) -> Lines:
    """The connection ends in the middle of a line."""
    at = _pick(lines, random_)
    return [*lines[:at], lines[at][: random_.randint(0, len(lines[at]))]]


def _twice(lines: Lines, random_: random.Random) -> Lines:
    at = _pick(lines, random_)
    return [*lines[: at + 1], *lines[at:]]


def _swapped(lines: Lines, random_: random.Random) -> Lines:
    one, other = _pick(lines, random_), _pick(lines, random_)
    lines = list(lines)
    lines[one], lines[other] = lines[other], lines[one]
    return lines


def _no_number(lines: Lines, random_: random.Random) -> Lines:
    """A number gives way to what is none."""
    at = _pick(lines, random_)
    return [*lines[:at], _NUMBER.sub(lambda _: random_.choice(_GARBAGE), lines[at]), *lines[at + 1 :]]


def _stray(lines: Lines, random_: random.Random) -> Lines:
    """A character too many, that is no digit, anywhere before the number."""
    at = _pick(lines, random_)
    line = lines[at]
    end = max(0, line.rfind(" "))
    where = random_.randint(0, end)
    return [*lines[:at], line[:where] + random_.choice('{}"\\=,# é\t\x7f') + line[where:], *lines[at + 1 :]]


def _lost(lines: Lines, random_: random.Random) -> Lines:
    """A character of a name or a label is gone: no digit, and no point between two, which would be another number."""
    at = _pick(lines, random_)
    line = lines[at]
    where = random_.randint(0, max(0, line.rfind(" ")))
    if line[where : where + 1].isdigit() or line[where : where + 1] == ".":
        return lines
    return [*lines[:at], line[:where] + line[where + 1 :], *lines[at + 1 :]]


def _joined(lines: Lines, random_: random.Random) -> Lines:
    """Two lines lose what is between them."""
    at = _pick(lines, random_)
    return [*lines[:at], "".join(lines[at : at + 2]), *lines[at + 2 :]]


def _foreign(lines: Lines, random_: random.Random) -> Lines:
    """Something else is in the middle of the page."""
    at = _pick(lines, random_)
    return [*lines[:at], random_.choice(("<html><body>502</body></html>", "{" * 500, "\\" * 300, 'a{b="')), *lines[at:]]


_KINDS: tuple[Callable[[Lines, random.Random], Lines], ...] = (
    _removed,
    _cut,
    _twice,
    _swapped,
    _no_number,
    _stray,
    _lost,
    _joined,
    _foreign,
)
