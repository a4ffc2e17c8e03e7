"""A metrics page as families of samples under their exact names, within bounds. A damaged line is never a value.

Reads the text format itself. prometheus_client's parser takes quadratic time over a line's labels (seconds for one
long line, so a page could stop the agent), adds `_total` to counters without it, so that names are not the page's, and
takes a number that was cut in two for a value and a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

MAX_PAGE_BYTES = 8 << 20
MAX_SERIES = 200_000
MAX_LINE_CHARACTERS = 1 << 16
LEAST_TIMESTAMP_MS = 10**11
"""A smaller one is of before 1973: the number before it was cut in two."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*+)"[ \t]*(,|(?=\}))')
_REST = re.compile(
    r"[ \t]+([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|NaN|[+-]?Inf)"
    r"(?:[ \t]+([0-9]+))?[ \t]*(?:#[ \t].*)?"
)
_ESCAPE = re.compile(r"\\(.)")

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float]


@dataclass(slots=True)
class Page:
    """What a page says. `families` maps an exact sample name to its series, of which NaN and infinities are kept.

    `damaged` names families of which a line could not be read, or whose series say two things at once: their sums are
    unknown. `truncated` says that the page was longer than the bounds; what came after them is unknown.
    """

    families: dict[str, dict[Labels, float]] = field(default_factory=dict)
    damaged_lines: int = 0
    damaged: set[str] = field(default_factory=set)
    truncated: bool = False

    def has(self, name: str) -> bool:
        """Whether a series of that name could be read."""
        return name in self.families

    def samples(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of every series of that name."""
        for labels, value in self.families.get(name, {}).items():
            yield dict(labels), value

    def value(self, name: str, **labels: str) -> float | None:
        """The one value with these labels; None where there is none, several, or one that is no finite number."""
        found = [value for own, value in self.samples(name) if labels.items() <= own.items()]
        return found[0] if len(found) == 1 and math.isfinite(found[0]) and not self._partial(name) else None

    def sum(self, name: str, **labels: str) -> float | None:
        """The sum of all series with these labels; None where there is none or a part of it is not known."""
        return self._sum(name, [value for own, value in self.samples(name) if labels.items() <= own.items()])

    def by(self, name: str, label: str) -> dict[str, float] | None:
        """Sums by the value of one label; None where none has it or a part is not known."""
        parts: dict[str, list[float]] = {}
        for own, value in self.samples(name):
            if label in own:
                parts.setdefault(own[label], []).append(value)
        sums = {key: self._sum(name, values) for key, values in parts.items()}
        known = {key: value for key, value in sums.items() if value is not None}
        return known if known and len(known) == len(sums) else None

    def _sum(self, name: str, values: list[float]) -> float | None:
        if not values or self._partial(name) or not all(map(math.isfinite, values)):
            return None
        return math.fsum(values)

    def _partial(self, name: str) -> bool:
        return self.truncated or name in self.damaged


def parse_page(text: str | bytes, wanted: Collection[str] | None = None) -> Page:
    """Parse a page in the Prometheus text format. Never raises.

    Only families whose name starts with one of `wanted` are kept. A line without its end is not believed: its number
    may have been cut. Comments and types are ignored: what a family is, its profile knows.
    """
    page = Page()
    if len(text) > MAX_PAGE_BYTES:
        text, page.truncated = text[:MAX_PAGE_BYTES], True
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    prefixes = None if wanted is None else tuple(wanted)
    *lines, cut = decoded.split("\n")
    series = 0
    alike: dict[str, Labels] = {}
    for line in lines:
        if line[:1] in ("", "#") or (prefixes is not None and not line.startswith(prefixes)):
            continue
        series += 1
        if series > MAX_SERIES:
            page.truncated = True
            break
        _take(page, line.rstrip("\r"), alike)
    if cut and cut[0] != "#" and (prefixes is None or cut.startswith(prefixes)):
        _damage(page, cut)
    return page


def _take(page: Page, line: str, alike: dict[str, Labels]) -> None:
    """Add one line, or count it as damaged. `alike` are the labels read so far: most families have the same."""
    named = _NAME.match(line)
    if named is None or len(line) > MAX_LINE_CHARACTERS or "\ufffd" in line:
        _damage(page, line)
        return
    text = line[named.end() : line.rfind("}") + 1]
    labels, end = alike.get(text), named.end() + len(text)
    if labels is None:
        labels, end = _labels(line, named.end())
        if labels is not None and end == named.end() + len(text):
            alike[text] = labels
    rest = None if labels is None else _REST.fullmatch(line, end)
    if labels is None or rest is None or (rest[2] and int(rest[2][:20]) < LEAST_TIMESTAMP_MS):
        _damage(page, line)
        return
    name, value = named[0], float(rest[1])
    family = page.families.setdefault(name, {})
    earlier = family.setdefault(labels, value)
    if earlier != value and not (math.isnan(earlier) and math.isnan(value)):
        family[labels] = math.nan
        page.damaged.add(name)


def _labels(line: str, start: int) -> tuple[Labels | None, int]:
    """The labels that begin at `start`, sorted, and where they end; None for labels that cannot be read."""
    if not line.startswith("{", start):
        return (), start
    found: dict[str, str] = {}
    position = start + 1
    while not line.startswith("}", position):
        label = _LABEL.match(line, position)
        if label is None or label[1] in found:
            return None, position
        value = label[2]
        found[label[1]] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        position = label.end()
    return tuple(sorted(found.items())), position + 1


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def _damage(page: Page, line: str) -> None:
    page.damaged_lines += 1
    named = _NAME.match(line)
    if named is not None:
        page.damaged.add(named[0])
