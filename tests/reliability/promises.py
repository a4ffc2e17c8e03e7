"""What docs/findings.md promises for each fault: the drill is held against the page people read."""

from __future__ import annotations

import re
from pathlib import Path

from kvledger.words import FindingKind

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
_ROW = re.compile(r"\| `(?P<fault>\w+)`: [^|]*\|(?P<shows>[^|]*)\|")


def promised_findings() -> dict[str, frozenset[FindingKind]]:
    """Fault -> the findings it may show as, from the table of the documentation."""
    known = FindingKind.words()
    promises = {}
    for line in PAGE.read_text().splitlines():
        if row := _ROW.match(line):
            words = re.findall(r"`(\w+)`", row["shows"])
            promises[row["fault"]] = frozenset(FindingKind(known.index(word)) for word in words)
    return promises
